// What hosts compute for a launch: integers as Python has them. What passes the ends of int64 stays there.
static inline int64_t sw_end(int is_negative) { return is_negative ? INT64_MIN : INT64_MAX; }
static inline int64_t sw_add(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? sw_end(a < 0) : sum;
}
static inline int64_t sw_subtract(int64_t a, int64_t b) {
  int64_t rest;
  return __builtin_sub_overflow(a, b, &rest) ? sw_end(a < 0) : rest;
}
static inline int64_t sw_multiply(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? sw_end((a < 0) != (b < 0)) : product;
}
static inline int64_t sw_floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a % b < 0) != (b < 0)); }
static inline int64_t sw_floor_mod(int64_t a, int64_t b) {
  return a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0);
}
static inline int64_t sw_ceil_div(int64_t a, int64_t b) { return sw_subtract(0, sw_floor_div(sw_subtract(0, a), b)); }
static inline int64_t sw_max(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t sw_min(int64_t a, int64_t b) { return a < b ? a : b; }
