// What libraries in PyTorch need of machine code: their loops run on OpenMP's threads of the calling thread, those that
// PyTorch's own operators run on, and the calls of a chain are made without Python between them.
// Calls OpenMP by the names that GNU's, LLVM's and Intel's have.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void), omp_get_num_threads(void), omp_get_max_threads(void);

// -- teams --------------------------------------------------------------------------------------------------------------
// A team is a parallel region in which the caller works, and the others wait for loops of which they take parts. Whoever
// comes late finds fewer parts, and only the end of the region waits for all.
enum {
  SPINS = 2000,           // some tens of microseconds: a kernel for one thread
  YIELDS = 300,           // some fifty, before a thread sleeps
  LONG_SPINS = 50000,     // a millisecond: who yields where others want the core loses it for longer
  MOST_PARTS = 0xffff,
  MOST_ALONE = 63,        // regions left out after one that cost more than it gave
  LATE_NS = 50000, LATE_SHARE = 8
};
typedef struct { void *barrier; int32_t count; } group;
typedef int (*part)(int number, group *group, void *data);
typedef struct {
  _Atomic uint64_t ticket;  // the loop's number, how many parts it has, and the next one: 32, 16, 16 bits
  _Atomic uint32_t news;    // counts up with every loop, and at the end
  _Atomic int asleep, closed, finished, failed;
  part part;
  void *data;
  void (*work)(void *);
  void *given;
  int64_t done_ns, waited_ns;
} team;

static _Thread_local team *own;       // the team that this thread leads
static _Thread_local int forked;      // the threads of its pool are gone: it would wait for them for ever
static _Thread_local int alone, more; // regions to leave out, and how many after the next one that is late
static _Thread_local int by_itself;   // this thread does all parts of every loop

static void after_fork(void) { forked = 1; }

__attribute__((constructor)) static void start(void) { pthread_atfork(0, 0, after_fork); }

static int64_t now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void rest_a_moment(int times, int spins) {
  if (times >= spins) sched_yield();
#if defined(__x86_64__)
  else __builtin_ia32_pause();
#elif defined(__aarch64__)
  else __asm__ volatile("yield");
#endif
}

static void take_parts(team *team) {
  uint64_t ticket = atomic_load(&team->ticket);
  while ((ticket & 0xffff) < (ticket >> 16 & 0xffff))
    if (atomic_compare_exchange_weak(&team->ticket, &ticket, ticket + 1)) {
      // What the loop is does not change before this part is finished.
      group group = {0, (int32_t)(ticket >> 16 & 0xffff)};
      if (team->part((int)(ticket & 0xffff), &group, team->data)) atomic_store(&team->failed, 1);
      atomic_fetch_add(&team->finished, 1);
      ticket = atomic_load(&team->ticket);
    }
}

static void tell(team *team) {
  atomic_fetch_add(&team->news, 1);
  if (atomic_load(&team->asleep)) syscall(SYS_futex, &team->news, FUTEX_WAKE_PRIVATE, INT_MAX, 0, 0, 0);
}

static void wait_and_help(team *team) {
  uint32_t seen = atomic_load(&team->news);
  for (int times = 0; !atomic_load(&team->closed);) {
    take_parts(team);
    uint32_t news = atomic_load(&team->news);
    if (news != seen) {
      seen = news, times = 0;
    } else if (times < SPINS + YIELDS) {
      rest_a_moment(times++, SPINS);
    } else {
      atomic_fetch_add(&team->asleep, 1);
      syscall(SYS_futex, &team->news, FUTEX_WAIT_PRIVATE, seen, 0, 0, 0);
      atomic_fetch_sub(&team->asleep, 1);
    }
  }
}

static void take_part(void *data) {
  team *team = data;
  if (omp_get_thread_num()) return wait_and_help(team);
  own = omp_get_num_threads() > 1 ? team : 0;
  team->work(team->given);
  own = 0;
  atomic_store(&team->closed, 1);
  tell(team);
  team->done_ns = now_ns();
}

// Do `work` with a team of so many threads, or alone: where there are none to be had, and for a while after a loop or the
// region's end had to wait for threads that found no core.
static void with_team(int threads, void (*work)(void *), void *given) {
  if (threads < 2 || forked || own || (alone && alone--)) return work(given);
  team team = {.work = work, .given = given};
  int64_t before = now_ns();
  GOMP_parallel(take_part, &team, (unsigned)threads, 0);
  int64_t after = now_ns(), late = after - team.done_ns + team.waited_ns;
  if (late > LATE_NS && late > (after - before) / LATE_SHARE) alone = more = 2 * more < MOST_ALONE ? 2 * more + 1 : MOST_ALONE;
  else more = 0;
}

// -- loops --------------------------------------------------------------------------------------------------------------
typedef struct { part part; void *data; int count, failed; } loop;

static void run_loop(void *given) {
  loop *loop = given;
  team *team = own;
  if (!team || loop->count < 2 || loop->count > MOST_PARTS) {
    group group = {0, loop->count};
    for (int number = 0; number < loop->count; number++) loop->failed |= loop->part(number, &group, loop->data) != 0;
    return;
  }
  team->part = loop->part, team->data = loop->data;
  atomic_store(&team->finished, 0);
  atomic_store(&team->failed, 0);
  uint64_t next = (atomic_load(&team->ticket) >> 32) + 1;
  atomic_store(&team->ticket, next << 32 | (uint64_t)loop->count << 16);
  tell(team);
  int64_t before = now_ns(), worked = 0;
  take_parts(team);
  for (int times = 0; atomic_load(&team->finished) < loop->count; times++) {
    if (times == SPINS) worked = now_ns();
    rest_a_moment(times, LONG_SPINS);
  }
  // A part takes about as long as another: who is waited for longer than that has lost its core.
  if (worked) {
    int64_t waited = now_ns() - worked;
    if (waited > worked - before) team->waited_ns += waited;
  }
  loop->failed = atomic_load(&team->failed);
}

static _Atomic int most = 1; // threads that any library was tuned for

void expect_threads(int threads) {
  int known = atomic_load(&most);
  while (known < threads && !atomic_compare_exchange_weak(&most, &known, threads)) {}
}

static int least(int one, int other) { return one < other ? one : other; }

// TVMBackendParallelLaunch. A thread in which PyTorch has run no loop may have as many threads as there are cores,
// whatever PyTorch was told.
int launch(part part, void *data, int count) {
  int threads = least(omp_get_max_threads(), atomic_load(&most));
  loop loop = {part, data, count > 0 ? count : threads, 0};
  if (own || by_itself) run_loop(&loop);
  else with_team(least(loop.count, threads), run_loop, &loop);
  return loop.failed ? -1 : 0;
}

// -- paces --------------------------------------------------------------------------------------------------------------
// What a chain of some sizes takes with a team, and by itself, of late. Where others want the cores a team waits for
// them, and short chains are not worth one: whichever takes less is taken, and the other one tried now and then.
enum { WARM_UP = 3, FEW = 16, SOON = 2, MOST_BETWEEN = 128, SELDOM = 64, LARGE_STEP = 2, STEP = 8 };
typedef struct { _Atomic int64_t ns[2]; _Atomic int32_t calls, since, between; } pace; // [0]: with a team

static int by_itself_is_better(pace *pace) { return atomic_load(&pace->ns[1]) < atomic_load(&pace->ns[0]); }

static int64_t clamp(int64_t value, int64_t least, int64_t most) {
  return value < least ? least : value > most ? most : value;
}

// Calls before the other way is tried again: so many that two tries of this thread by itself add a thirtieth to their
// time, within the limits. With a team soon: where that seems slower at first, something may have disturbed it.
static int apart(const pace *pace) {
  int64_t team = atomic_load(&pace->ns[0]), alone = atomic_load(&pace->ns[1]);
  if (!team || alone <= team) return SOON;
  return (int)clamp(SELDOM * (alone - team) / team, SOON, MOST_BETWEEN);
}

// Whether the next call is to be made by itself. The other way is tried twice: the first time, as the very first call,
// wakes threads and fills caches, and tells nothing.
int goes_alone(pace *pace) {
  int calls = atomic_load(&pace->calls);
  if (calls < FEW) atomic_store(&pace->calls, calls + 1);
  if (calls < WARM_UP) return calls == WARM_UP - 1;
  int better = by_itself_is_better(pace), between = atomic_load(&pace->between);
  int since = atomic_fetch_add(&pace->since, 1) + 1;
  if (since < between) return better;
  if (since > between) {
    atomic_store(&pace->since, 0);
    atomic_store(&pace->between, (int)clamp(2 * between, apart(pace), MOST_BETWEEN));
  }
  return !better;
}

// What is known goes towards the median: one that was interrupted says little.
void learn(pace *pace, int is_alone, int64_t took) {
  int64_t known = atomic_load(&pace->ns[is_alone]), other = atomic_load(&pace->ns[!is_alone]);
  int calls = atomic_load(&pace->calls);
  if (calls <= WARM_UP) {
    atomic_store(&pace->ns[is_alone], took);
    atomic_store(&pace->between, apart(pace));
    return;
  }
  if (atomic_load(&pace->since) >= atomic_load(&pace->between) && is_alone != by_itself_is_better(pace)) return;
  int64_t step = known / (calls < FEW ? LARGE_STEP : STEP), now = known + clamp(took - known, -step, step);
  atomic_store(&pace->ns[is_alone], now);
  // The other one soon, where which one takes less has changed, or seems to.
  if (known > other ? took < other : now > other) {
    atomic_store(&pace->between, SOON);
    atomic_store(&pace->since, 0);
  }
}

// -- chains -------------------------------------------------------------------------------------------------------------
enum { TENSOR = 7, MOST_OPERANDS = 64 };

// DLPack's DLTensor, and an argument as TVM's calling convention has it.
typedef struct {
  void *data;
  int32_t device, device_id, rank;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} tensor;
typedef struct { int32_t type; uint32_t padding; void *value; } any;
typedef int (*entry)(void *self, const any *arguments, int32_t count, any *result);
// A tensor whose sizes stand from number `at` on, and behind them how many bytes it lies behind the base of that number,
// and how many a row lies behind the one before, or OF_A_PART: some rows, in the memory of who computes these.
typedef struct { tensor tensor; int64_t at, base; } operand;
typedef struct { entry entry; const operand *operands; int64_t count; } call;
enum { OF_A_PART = -1 };
// Calls that are made for some rows of a batch, then for the next ones, or for some rows by all threads together.
typedef struct {
  int64_t first, end;            // its calls
  int64_t row;                   // the first one of its rows
  int64_t count, large, rows;    // how many parts, 0: all threads together; the first of them have a row more than this
  int64_t *of_large, *of_others; // the numbers of their calls
  int64_t own, bytes;            // where the memory of who computes a part begins, and how much each of them has
} segment;
typedef struct { int64_t count; const segment *segments; } parts;
typedef struct {
  const call *calls;
  int count, threads;
  _Atomic int failed;
  char *const *bases;
  int64_t *numbers;
  double *seconds;           // by thread
  const parts *parts;
} chain;
// The calls of a segment for the rows from `row` on, by a thread that has memory and seconds of its own behind those of
// `slot` others, `beside` of which compute meanwhile.
typedef struct { chain *chain; const segment *segment; int64_t *numbers, row; int slot, beside; } rows;

static int is_empty(const tensor *tensor) {
  for (int axis = 0; axis < tensor->rank; axis++)
    if (!tensor->shape[axis]) return 1;
  return 0;
}

static char *place_of(const rows *rows, const operand *operand) {
  const int64_t *behind = rows->numbers + operand->at + operand->tensor.rank, row_bytes = behind[1];
  char *place = rows->chain->bases[operand->base] + behind[0];
  if (row_bytes == OF_A_PART) return place + rows->segment->own + rows->slot * rows->segment->bytes;
  return place + rows->row * row_bytes;
}

static void run_calls(const rows *rows) {
  chain *chain = rows->chain;
  for (int number = (int)rows->segment->first; number < rows->segment->end; number++) {
    const call *call = &chain->calls[number];
    tensor tensors[MOST_OPERANDS];
    any arguments[MOST_OPERANDS], result = {0};
    if (call->count > MOST_OPERANDS) {
      chain->failed = number + 1;
      return;
    }
    for (int i = 0; i < call->count; i++) {
      const operand *operand = &call->operands[i];
      tensors[i] = operand->tensor;
      tensors[i].shape = rows->numbers + operand->at;
      tensors[i].data = place_of(rows, operand);
      arguments[i] = (any){TENSOR, 0, &tensors[i]};
    }
    if (call->count && is_empty(&tensors[call->count - 1])) continue; // Nothing is to be computed.
    int64_t before = chain->seconds ? now_ns() : 0;
    if (call->entry(0, arguments, (int32_t)call->count, &result)) {
      chain->failed = number + 1;
      return;
    }
    if (chain->seconds)
      chain->seconds[rows->slot * chain->count + number] += 1e-9 * (double)(now_ns() - before) / (1 + rows->beside);
  }
}

typedef struct { chain *chain; const segment *segment; } parts_of;

// One of the parts, by whichever thread takes it: its kernels have no other one.
static int run_part(int number, group *group, void *data) {
  const parts_of *of = data;
  chain *chain = of->chain;
  const segment *segment = of->segment;
  team *team = own;
  int before = by_itself, slot = chain->threads > 1 ? omp_get_thread_num() : 0;
  int beside = chain->threads > 1 ? omp_get_num_threads() - 1 : 0;
  int64_t *numbers = number < segment->large ? segment->of_large : segment->of_others;
  int64_t row = segment->row + number * segment->rows + least(number, (int)segment->large);
  rows rows = {chain, segment, numbers, row, slot, beside};
  if (chain->failed) return 1;
  own = 0, by_itself = 1;
  run_calls(&rows);
  own = team, by_itself = before;
  return chain->failed != 0;
}

static void run_segment(chain *chain, const segment *segment) {
  rows rows = {chain, segment, segment->of_others, segment->row, 0, 0};
  if (!segment->count) return run_calls(&rows);
  parts_of of = {chain, segment};
  loop loop = {run_part, &of, (int)segment->count, 0};
  if (chain->threads > 1) return run_loop(&loop);
  for (int number = 0; number < loop.count && !chain->failed; number++) run_part(number, 0, &of);
}

static void run_rows(void *given) {
  chain *chain = given;
  const parts *parts = chain->parts;
  const segment whole = {.end = chain->count, .of_others = chain->numbers};
  if (!parts) return run_segment(chain, &whole);
  for (int64_t number = 0; number < parts->count && !chain->failed; number++) run_segment(chain, &parts->segments[number]);
}

// -- joins --------------------------------------------------------------------------------------------------------------
enum { SHARED_BYTES = 1 << 18 }; // less is copied by one thread
typedef struct { const any *arguments; int count; int64_t rows; } join_of;

static int64_t row_bytes(const tensor *tensor) { return tensor->shape[1] * tensor->bits / 8; }

// One of some parts of the rows.
static int join_part(int number, group *group, void *data) {
  join_of *of = data;
  const tensor *out = of->arguments[of->count - 1].value;
  int64_t first = of->rows * number / group->count, last = of->rows * (number + 1) / group->count, at = 0;
  for (int i = 0; i < of->count - 1; i++) {
    const tensor *given = of->arguments[i].value;
    int64_t size = row_bytes(given), whole = row_bytes(out);
    for (int64_t row = first; size && row < last; row++) {
      char *to = (char *)out->data + row * whole + at;
      const char *from = (const char *)given->data + row * size;
      if (to != from) memcpy(to, from, (size_t)size); // one row may have been made where it belongs
    }
    at += size;
  }
  return 0;
}

// Matrices [rows, ...] next to each other, as a library is called: the last argument is the result.
int join(void *self, const any *arguments, int32_t count, any *result) {
  const tensor *out = arguments[count - 1].value;
  join_of of = {arguments, count, out->shape[0]};
  if (own && of.rows > 1 && of.rows * row_bytes(out) > SHARED_BYTES) return launch(join_part, &of, 0);
  group group = {0, 1};
  return join_part(0, &group, &of);
}

// -- transposes -------------------------------------------------------------------------------------------------------
enum { SQUARE = 16 }; // of 4-byte elements a line of the caches along each axis
typedef struct { const tensor *given, *out; } transpose_of;

// Rows `first` to `last` of a matrix as columns of another one.
#define TRANSPOSE(type)                                                                                                \
  static void transpose_##type(const type *from, type *to, int64_t rows, int64_t columns, int64_t first, int64_t last) {\
    for (int64_t begin = first; begin < last; begin += SQUARE)                                                         \
      for (int64_t left = 0; left < columns; left += SQUARE)                                                           \
        for (int64_t column = left; column < columns && column < left + SQUARE; column++)                              \
          for (int64_t row = begin; row < last && row < begin + SQUARE; row++)                                         \
            to[column * rows + row] = from[row * columns + column];                                                    \
  }
TRANSPOSE(uint8_t)
TRANSPOSE(uint16_t)
TRANSPOSE(uint32_t)
TRANSPOSE(uint64_t)

// One of some parts of all rows, those of one matrix after those of the other.
static int transpose_part(int number, group *group, void *data) {
  transpose_of *of = data;
  int64_t rows = of->given->shape[1], columns = of->given->shape[2], bytes = of->given->bits / 8;
  int64_t all = of->given->shape[0] * rows, at = all * number / group->count, end = all * (number + 1) / group->count;
  while (at < end) {
    int64_t matrix = at / rows, first = at % rows, last = least(rows, first + end - at);
    const char *from = (const char *)of->given->data + matrix * rows * columns * bytes;
    char *to = (char *)of->out->data + matrix * rows * columns * bytes;
    if (bytes == 1) transpose_uint8_t((const void *)from, (void *)to, rows, columns, first, last);
    if (bytes == 2) transpose_uint16_t((const void *)from, (void *)to, rows, columns, first, last);
    if (bytes == 4) transpose_uint32_t((const void *)from, (void *)to, rows, columns, first, last);
    if (bytes == 8) transpose_uint64_t((const void *)from, (void *)to, rows, columns, first, last);
    at += last - first;
  }
  return 0;
}

// Matrices [matrices, rows, columns] transposed, as a library is called.
int transpose(void *self, const any *arguments, int32_t count, any *result) {
  transpose_of of = {arguments[0].value, arguments[1].value};
  int bits = of.given->bits;
  if (bits != 8 && bits != 16 && bits != 32 && bits != 64) return 1;
  int64_t bytes = of.given->shape[0] * of.given->shape[1] * of.given->shape[2] * bits / 8;
  if (own && bytes > SHARED_BYTES) return launch(transpose_part, &of, 0);
  group group = {0, 1};
  return transpose_part(0, &group, &of);
}

// -- calls --------------------------------------------------------------------------------------------------------------
// Make the calls in order with a team of so many threads, or of as many as PyTorch may have here, or by this thread
// itself, by their pace; with `parts` those of one segment after the other. Add what each took where `seconds` points to,
// if it does, which has room for each thread. Returns 0, or the number of a call that failed, from 1.
// Writes nothing else but outputs and memory: threads may share descriptions.
int run_chain(
    const call *calls, int count, int threads, char *const *bases, int64_t *numbers, double *seconds, pace *pace,
    const parts *parts) {
  chain chain = {calls, count, 1, 0, bases, numbers, seconds, parts};
  threads = least(threads, omp_get_max_threads());
  if (threads < 2 || forked || own || by_itself) {
    run_rows(&chain);
    return chain.failed;
  }
  int is_alone = goes_alone(pace);
  int64_t before = now_ns();
  if (is_alone) {
    by_itself = 1;
    run_rows(&chain);
    by_itself = 0;
  } else {
    chain.threads = threads;
    team team = {.work = run_rows, .given = &chain};
    GOMP_parallel(take_part, &team, (unsigned)threads, 0);
  }
  learn(pace, is_alone, now_ns() - before);
  return chain.failed;
}
