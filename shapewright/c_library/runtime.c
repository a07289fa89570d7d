// What the kernels want of a runtime, and nothing else: errors, workspaces, threads, tensors; and the packing of constants.
// Everything here is private to this library.

enum { SW_MAX_ERROR = 512, SW_ALIGNMENT = 64, SW_TENSOR = 7, SW_CPU = 1 };

typedef struct { int32_t type, id; } sw_device;
typedef struct { uint8_t code, bits; uint16_t lanes; } sw_dtype;
// DLPack's DLTensor, and an argument as TVM's calling convention has it.
typedef struct {
  void *data;
  sw_device device;
  int32_t ndim;
  sw_dtype dtype;
  int64_t *shape, *strides;
  uint64_t byte_offset;
} sw_tensor;
typedef struct {
  int32_t type;
  uint32_t padding;
  union { void *pointer; int64_t integer; } value;
} sw_any;
typedef struct { const void *data; const int64_t *shape; int32_t ndim; sw_dtype dtype; const char *name; } sw_operand;

static _Thread_local char sw_error[SW_MAX_ERROR];

static int sw_fail(int status, const char *what, const char *which) {
  snprintf(sw_error, sizeof sw_error, "%s%s%s", which, *which ? ": " : "", what);
  return status;
}

// Called by the kernels' code, where an argument is not as it must be.
void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  size_t used = (size_t)snprintf(sw_error, sizeof sw_error, "%s: ", kind);
  for (int32_t i = 0; i < count && used < sizeof sw_error; i++)
    if (parts[i]) used += (size_t)snprintf(sw_error + used, sizeof sw_error - used, "%s", parts[i]);
}

#if SW_WORKSPACES
static void *sw_allocate(int type, int id, uint64_t size, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return aligned_alloc(SW_ALIGNMENT, (size / SW_ALIGNMENT + 1) * SW_ALIGNMENT);
}

static int sw_release(int type, int id, void *memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}
#endif

// -- threads ----------------------------------------------------------------------------------------------------------
#if SW_PARALLEL
typedef struct { void *sync; int32_t tasks; } sw_group;
typedef int (*sw_part)(int task, sw_group *group, void *data);

static int sw_serially(sw_part part, void *data, int count) {
  sw_group group = {NULL, count};
  for (int i = 0; i < count; i++)
    if (part(i, &group, data)) return -1;
  return 0;
}

#if SW_THREADS > 1
// One job at a time; whoever calls while it runs computes alone. The caller takes part, so a pool that has no threads is
// still right. Threads wait for the next job, and the caller for the last part, some tens of microseconds before they
// sleep: to be woken takes as long as a short call.
enum { SW_YIELDS = 300 };
static struct {
  pthread_mutex_t busy, lock;
  pthread_cond_t work, done;
  int started, next, count, failed;
  _Atomic int finished;
  _Atomic unsigned job;
  sw_part part;
  void *data;
} sw_pool = {.busy = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER,
             .work = PTHREAD_COND_INITIALIZER, .done = PTHREAD_COND_INITIALIZER};

// In a process that was forked there are no threads of the pool, and what they held and waited for stays taken: the pool
// begins anew.
static void sw_after_fork(void) {
  pthread_mutex_init(&sw_pool.busy, NULL), pthread_mutex_init(&sw_pool.lock, NULL);
  pthread_cond_init(&sw_pool.work, NULL), pthread_cond_init(&sw_pool.done, NULL);
  sw_pool.started = sw_pool.next = sw_pool.count = 0;
}

// Do what is left of the job; called, and left, with the lock held.
static void sw_take_part(void) {
  while (sw_pool.next < sw_pool.count) {
    int task = sw_pool.next++;
    sw_part part = sw_pool.part;
    sw_group group = {NULL, sw_pool.count};
    void *data = sw_pool.data;
    pthread_mutex_unlock(&sw_pool.lock);
    int failed = part(task, &group, data);
    pthread_mutex_lock(&sw_pool.lock);
    sw_pool.failed |= failed;
    if (++sw_pool.finished == sw_pool.count) pthread_cond_signal(&sw_pool.done);
  }
}

static void *sw_work(void *unused) {
  (void)unused;
  pthread_mutex_lock(&sw_pool.lock);
  for (;;) {
    sw_take_part();
    unsigned job = sw_pool.job;
    pthread_mutex_unlock(&sw_pool.lock);
    for (int i = 0; i < SW_YIELDS && sw_pool.job == job; i++) sched_yield();
    pthread_mutex_lock(&sw_pool.lock);
    while (sw_pool.job == job) pthread_cond_wait(&sw_pool.work, &sw_pool.lock);
  }
  return NULL;
}

static void sw_start(void) {
  pthread_attr_t attributes;
  sw_pool.started = 1;
  if (pthread_attr_init(&attributes)) return;
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  for (int i = 1; i < SW_THREADS; i++) {
    pthread_t thread;
    if (pthread_create(&thread, &attributes, sw_work, NULL)) break;
  }
  pthread_attr_destroy(&attributes);
}

static int sw_launch(sw_part part, void *data, int count) {
  if (count <= 0) count = SW_THREADS;
  if (count == 1 || pthread_mutex_trylock(&sw_pool.busy)) return sw_serially(part, data, count);
  pthread_mutex_lock(&sw_pool.lock);
  if (!sw_pool.started) sw_start();
  sw_pool.part = part, sw_pool.data = data, sw_pool.count = count;
  sw_pool.next = sw_pool.finished = sw_pool.failed = 0;
  sw_pool.job++;
  pthread_cond_broadcast(&sw_pool.work);
  sw_take_part();
  pthread_mutex_unlock(&sw_pool.lock);
  for (int i = 0; i < SW_YIELDS && sw_pool.finished < count; i++) sched_yield();
  pthread_mutex_lock(&sw_pool.lock);
  while (sw_pool.finished < count) pthread_cond_wait(&sw_pool.done, &sw_pool.lock);
  int failed = sw_pool.failed;
  pthread_mutex_unlock(&sw_pool.lock);
  pthread_mutex_unlock(&sw_pool.busy);
  return failed ? -1 : 0;
}
#else
static int sw_launch(sw_part part, void *data, int count) { return sw_serially(part, data, count > 0 ? count : 1); }
#endif
#endif

// -- the machine ------------------------------------------------------------------------------------------------------
// The kernels' code has a pointer for each function of the runtime that it calls.
#if SW_WORKSPACES
extern void *__TVMBackendAllocWorkspace, *__TVMBackendFreeWorkspace;
#endif
#if SW_PARALLEL
extern void *__TVMBackendParallelLaunch;
#endif

static const char *sw_missing, *sw_lack = "this CPU lacks it";
static pthread_once_t sw_once = PTHREAD_ONCE_INIT;

// Whether a line of /proc/cpuinfo has a word.
static int sw_has(const char *line, const char *word) {
  size_t length = strlen(word);
  for (const char *at = line; (at = strstr(at, word)); at += length)
    if (at > line && strchr(" \t:", at[-1]) && strchr(" \t\n", at[length])) return 1;
  return 0;
}

static void sw_prepare(void) {
#if SW_WORKSPACES
  __TVMBackendAllocWorkspace = (void *)sw_allocate;
  __TVMBackendFreeWorkspace = (void *)sw_release;
#endif
#if SW_PARALLEL
  __TVMBackendParallelLaunch = (void *)sw_launch;
#if SW_THREADS > 1
  if (pthread_atfork(NULL, NULL, sw_after_fork)) sw_pool.started = 1;  // no memory for it: no threads are started
#endif
#endif
  char *line = NULL;
  size_t room = 0;
  FILE *file = fopen("/proc/cpuinfo", "r");
  while (file && getline(&line, &room, file) > 0)
    if (!strncmp(line, "flags", 5) || !strncmp(line, "Features", 8)) {
      for (const char *const *feature = sw_features; *feature && !sw_missing; feature++)
        if (!sw_has(line, *feature)) sw_missing = *feature;
      break;
    }
  if (file) fclose(file);
  free(line);
#ifdef SW_ASKS_FOR_TILES
  if (!sw_missing && syscall(SW_ASKS_FOR_TILES)) {
    sw_missing = "amx_tile";
    sw_lack = "Linux does not let this process use it: allow arch_prctl (seccomp), run Linux 5.16 or later, or build the "
              "library for a target without it";
  }
#endif
}

static int sw_begin(void) {
  pthread_once(&sw_once, sw_prepare);
  if (sw_missing) return sw_fail(SHAPEWRIGHT_UNSUPPORTED_CPU, sw_lack, sw_missing);
  return SHAPEWRIGHT_OK;
}

// -- sizes ------------------------------------------------------------------------------------------------------------
static inline int64_t sw_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t sw_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
static inline int64_t sw_size(int64_t value) { return value < 0 ? 0 : value; }

static inline int sw_check_size(int64_t value, const char *name) {
  if (value >= 0 && value <= SW_MAX_SIZE) return SHAPEWRIGHT_OK;
  return sw_fail(SHAPEWRIGHT_BAD_SIZE, "is not a size from 0 to 2147483647", name);
}

// -- calls ------------------------------------------------------------------------------------------------------------
extern int __tvm_ffi_kernel(void *self, const sw_any *arguments, int32_t count, sw_any *result);

static int sw_call(const sw_operand *operands) {
  static char nothing[SW_ALIGNMENT];
  int64_t shapes[SW_OPERANDS][SW_DIMS], strides[SW_OPERANDS][SW_DIMS];
  sw_tensor tensors[SW_OPERANDS];
  sw_any arguments[SW_OPERANDS] = {{0}}, result = {0};
  for (int i = 0; i < SW_OPERANDS; i++) {
    const sw_operand *operand = &operands[i];
    int64_t elements = 1;
    for (int dim = operand->ndim; dim-- > 0; elements *= operand->shape[dim]) {
      shapes[i][dim] = operand->shape[dim];
      strides[i][dim] = elements;
    }
    if (!operand->data && elements) return sw_fail(SHAPEWRIGHT_NULL_POINTER, "is NULL", operand->name);
    void *data = operand->data ? (void *)operand->data : nothing;
    tensors[i] = (sw_tensor){data, {SW_CPU, 0}, operand->ndim, operand->dtype, shapes[i], strides[i], 0};
    arguments[i].type = SW_TENSOR;
    arguments[i].value.pointer = &tensors[i];
  }
  sw_error[0] = 0;
  if (!__tvm_ffi_kernel(NULL, arguments, SW_OPERANDS, &result)) return SHAPEWRIGHT_OK;
  return *sw_error ? SHAPEWRIGHT_FAILED : sw_fail(SHAPEWRIGHT_FAILED, "the kernel failed", "");
}

// -- constants --------------------------------------------------------------------------------------------------------
#if SW_PACKS
static inline int sw_no_memory(const char *name) {
  return sw_fail(SHAPEWRIGHT_FAILED, "cannot be packed, there is no memory", name);
}

enum { SW_PARTS = 16 };
// One flattened index over several parts of the dims of a tensor.
typedef struct { int parts; int64_t size[SW_PARTS], stride[SW_PARTS]; } sw_index;
// Matrices [rows, steps] as panels of so many rows, a `group` of steps at a time: `words` groups for each panel, of which
// the first is what compensates `offset`, if there is one. `from` is where they begin in the tensor, `to` in the packed.
typedef struct {
  sw_index batch, rows, steps;
  int64_t panel, group, offset, words, from, to;
} sw_matrices;

static int64_t sw_count(const sw_index *index) {
  int64_t count = 1;
  for (int i = 0; i < index->parts; i++) count *= index->size[i];
  return count;
}

static int64_t sw_place(const sw_index *index, int64_t at) {
  int64_t place = 0;
  for (int i = index->parts; i-- > 0; at /= index->size[i]) place += at % index->size[i] * index->stride[i];
  return place;
}

// The sum of a row of bytes.
static int32_t sw_total(const char *row, const sw_index *steps, int64_t count, int is_signed) {
  int32_t total = 0;
  for (int64_t k = 0; k < count; k++) {
    char byte = row[sw_place(steps, k)];
    total += is_signed ? (int32_t)(signed char)byte : (int32_t)(unsigned char)byte;
  }
  return total;
}

static void sw_pack(const sw_matrices *how, const char *from, char *to, size_t item, int is_signed) {
  int64_t batch = sw_count(&how->batch), rows = sw_count(&how->rows), steps = sw_count(&how->steps);
  int64_t panels = (rows + how->panel - 1) / how->panel, head = how->offset ? 1 : 0, word = how->panel * how->group;
  from += how->from * (int64_t)item;
  to += how->to * (int64_t)item;
  for (int64_t b = 0; b < batch; b++)
    for (int64_t r = 0; r < rows; r++) {
      const char *row = from + (sw_place(&how->batch, b) + sw_place(&how->rows, r)) * (int64_t)item;
      char *panel = to + (b * panels + r / how->panel) * how->words * word * (int64_t)item;
      int64_t lane = r % how->panel;
      for (int64_t k = 0; k < steps; k++) {
        int64_t place = (head + k / how->group) * word + lane * how->group + k % how->group;
        memcpy(panel + place * (int64_t)item, row + sw_place(&how->steps, k) * (int64_t)item, item);
      }
      if (head) {
        int32_t total = (int32_t)-how->offset * sw_total(row, &how->steps, steps, is_signed);
        memcpy(panel + lane * (int64_t)sizeof total, &total, sizeof total);
      }
    }
}
#endif

#if SW_FILTERS
// The 3 x 3 taps of all kernels and channels, `stride` elements apart by kernel, channel, and taps down and across, and
// their values at so many points.
typedef struct { int64_t kernels, channels, steps, stride[4], points; double at[9][3]; } sw_taps;

// What minimal filtering multiplies: element `p` of kernel `o` is row `p * kernels + o`, rows are `steps` elements apart.
static void sw_filter(const sw_taps *how, const float *from, float *to) {
  for (int64_t p = 0; p < how->points * how->points; p++)
    for (int64_t o = 0; o < how->kernels; o++)
      for (int64_t c = 0; c < how->channels; c++) {
        const float *taps = from + o * how->stride[0] + c * how->stride[1];
        double sum = 0;
        for (int64_t r = 0; r < 3; r++)
          for (int64_t s = 0; s < 3; s++)
            sum += how->at[p / how->points][r] * how->at[p % how->points][s]
                 * (double)taps[r * how->stride[2] + s * how->stride[3]];
        to[(p * how->kernels + o) * how->steps + c] = (float)sum;
      }
}
#endif

#if SW_BLOCKS
// What the blocks 11, 12, 21 and 22 of a right operand are multiplied by before they are added.
static const int sw_sums[][4] = SW_SUMS;

static uint32_t sw_bits(float value) { uint32_t bits; memcpy(&bits, &value, sizeof bits); return bits; }
static float sw_float(uint32_t bits) { float value; memcpy(&value, &bits, sizeof value); return value; }

// Panels of the columns of a right operand, which are the rows of `from`, divided by their factors; sums of their blocks
// for each pair of panels; and the factors: powers of two near the largest element, 0 of zeros, NaN of what is no number.
static void sw_blocks(const float *from, float *to, int64_t rows, int64_t steps, int64_t panel) {
  const int64_t pairs = (rows + 2 * panel - 1) / (2 * panel), half = steps / 2;
  const int64_t count = sizeof sw_sums / sizeof *sw_sums;
  float *sums = to + 2 * pairs * steps * panel, *factors = sums + count * pairs * half * panel;
  for (int64_t c = 0; c < 2 * pairs * panel; c++) {
    const float *own = from + c * steps;
    uint32_t most = 0;
    for (int64_t k = 0; c < rows && k < steps; k++) {
      const uint32_t bits = sw_bits(own[k]) & 0x7FFFFFFF;
      if (bits > most) most = bits;
    }
    const uint32_t field = most >> 23, exponent = field < 1 ? 1 : field > 253 ? 253 : field;
    const int is_finite = field < 255;
    factors[c] = sw_float(!is_finite ? 0x7FC00000 : most ? exponent << 23 : 0);
    for (int64_t k = 0; k < steps; k++)
      to[(c / panel * steps + k) * panel + c % panel] =
        c < rows && is_finite ? own[k] * sw_float((254 - exponent) << 23) : 0;
  }
  for (int64_t pair = 0; pair < pairs; pair++) {
    const float *left = to + 2 * pair * steps * panel, *right = left + steps * panel;
    for (int64_t number = 0; number < count; number++)
      for (int64_t at = 0; at < half * panel; at++) {
        const float blocks[] = {left[at], right[at], left[half * panel + at], right[half * panel + at]};
        double sum = 0;
        for (int64_t block = 0; block < 4; block++) sum += sw_sums[number][block] * (double)blocks[block];
        sums[(pair * count + number) * half * panel + at] = (float)sum;
      }
  }
}
#endif
