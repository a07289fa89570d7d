// The host part of a library for NVIDIA GPUs: it finds the driver, loads machine code and launches it on the caller's
// stream. What the library holds stands before it: SW_FUNCTIONS, SW_TARGETS and the tables of these.
//
// A call allocates nothing that outlives it, and waits for nothing, so that a graph may capture it.

// dlopen has moved to the C library in glibc 2.34: the older name is found in both places.
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror, dlerror@GLIBC_2.2.5");
#endif
#define SW_HIDDEN __attribute__((visibility("hidden")))

// -- integers as Python has them; what passes the ends of int64 stays there ------------------------------------------
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

// -- TVM FFI: arguments, errors, the caller's stream and allocator ---------------------------------------------------
typedef struct {
  int32_t type, more;
  union {
    int64_t number;
    void *pointer;
  } value;
} sw_any;
typedef struct {
  void *data;
  int32_t device_type, device;
  int32_t dims;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} sw_tensor;
enum { SW_CUDA = 2, SW_UINT = 1, SW_OBJECT_BYTES = 24 };

extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
extern void *TVMFFIEnvGetStream(int32_t device_type, int32_t device);
extern void *TVMFFIEnvGetDLPackManagedTensorAllocator(void);
extern int TVMFFIEnvTensorAlloc(sw_tensor *like, void **tensor);
extern int TVMFFIObjectDecRef(void *object);

__attribute__((format(printf, 2, 3))) static int sw_raise(const char *kind, const char *format, ...) {
  char text[2048];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  TVMFFIErrorSetRaisedFromCStr(kind, text);
  return -1;
}
#define SW_REFUSE(...) sw_raise("ValueError", __VA_ARGS__)
#define SW_FAIL(...) sw_raise("GpuFailed", __VA_ARGS__)

// -- the driver ------------------------------------------------------------------------------------------------------
typedef struct {
  _Alignas(64) uint64_t words[16];
} sw_map;
typedef void *sw_handle;
enum { SW_MAJOR = 75, SW_MINOR = 76, SW_DYNAMIC_SHARED = 8, SW_RELAXED = 2, SW_FREE_SHARED_BYTES = 48 << 10 };

static struct {
  int (*init)(unsigned);
  int (*version)(int *);
  int (*error_name)(int, const char **);
  int (*error_text)(int, const char **);
  int (*count)(int *);
  int (*device)(int *, int);
  int (*device_name)(char *, int, int);
  int (*attribute)(int *, int, int);
  int (*retain)(sw_handle *, int);
  int (*current)(sw_handle *);
  int (*push)(sw_handle);
  int (*pop)(sw_handle *);
  int (*capture_mode)(int *);
  int (*load)(sw_handle *, const void *);
  int (*function)(sw_handle *, sw_handle, const char *);
  int (*set)(sw_handle, int, int);
  int (*launch)(sw_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, sw_handle, void **,
                void **);
  int (*allocate)(uint64_t *, size_t, sw_handle);
  int (*release)(uint64_t, sw_handle);
  int (*encode)(sw_map *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                const uint32_t *, int, int, int, int);
} cu;

// In the order of the fields above. Drivers before CUDA 12 have no tensor maps.
static const char *const sw_names[] = {
    "cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuDeviceGetCount", "cuDeviceGet",
    "cuDeviceGetName", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2", "cuThreadExchangeStreamCaptureMode", "cuModuleLoadData", "cuModuleGetFunction",
    "cuFuncSetAttribute", "cuLaunchKernel", "cuMemAllocAsync", "cuMemFreeAsync", "cuTensorMapEncodeTiled"};
enum { SW_NAMES = sizeof sw_names / sizeof *sw_names };
_Static_assert(sizeof cu == SW_NAMES * sizeof(void *), "each function of the driver has a name");

// A target of SW_TARGETS: its number, as in sm_90a, and what follows it. A function of SW_FUNCTIONS for one of them:
// its name and machine code, bytes of shared memory, threads of a block, and what a tensor map brings of each matrix.
typedef struct {
  int major, minor;
  char suffix;
} sw_target;
typedef struct {
  int element, bytes, swizzle;
  uint32_t rows, columns;
} sw_box;
typedef struct {
  const char *name;
  const unsigned char *binary;
  uint32_t shared, threads;
  sw_box boxes[SW_BOXES];
} sw_code;
static const sw_target sw_targets[SW_TARGETS];
static const sw_code sw_codes[SW_FUNCTIONS][SW_TARGETS];

typedef struct {
  int is_ready;
  int target;
  sw_handle context;
  sw_handle functions[SW_FUNCTIONS];
} sw_device;

static pthread_mutex_t sw_lock = PTHREAD_MUTEX_INITIALIZER;
static sw_device *sw_devices;
static int sw_count, sw_version, sw_is_ready;

static const char *sw_why(int code) {
  static __thread char text[512];
  const char *name = NULL, *meaning = NULL;
  cu.error_name(code, &name);
  cu.error_text(code, &meaning);
  snprintf(text, sizeof text, "%s (%s)", meaning ? meaning : "unknown error", name ? name : "no name");
  return text;
}

// Find the driver and its GPUs, once.
static int sw_find_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return SW_FAIL("no NVIDIA driver is here (%s): install one, or use a library for this CPU", dlerror());
  void **functions = (void **)&cu;
  for (int i = 0; i < SW_NAMES; ++i) {
    functions[i] = dlsym(library, sw_names[i]);
    if (!functions[i] && (i < SW_NAMES - 1 || SW_MAPS))
      return SW_FAIL("the NVIDIA driver is too old: it has no %s; install one for CUDA 12 or later", sw_names[i]);
  }
  int code = cu.init(0);
  if (!code) code = cu.version(&sw_version);
  if (!code) code = cu.count(&sw_count);
  if (code) return SW_FAIL("the NVIDIA driver finds no GPU: %s; look what nvidia-smi says", sw_why(code));
  if (sw_count < 1) return SW_FAIL("the NVIDIA driver finds no GPU: look at CUDA_VISIBLE_DEVICES, and nvidia-smi");
  sw_devices = calloc((size_t)sw_count, sizeof *sw_devices);
  return sw_devices ? 0 : SW_FAIL("out of memory");
}

// Whether code of a target runs on a GPU of this capability: letters stand for instructions that later ones lack.
static int sw_runs(const sw_target *target, int major, int minor) {
  if (target->major != major || target->minor > minor) return 0;
  return target->minor == minor || target->suffix != 'a';
}

// The best target for a GPU, or -1 and an error.
static int sw_choose_target(int number, int device, int *chosen) {
  int major = 0, minor = 0, best = -1;
  int code = cu.attribute(&major, SW_MAJOR, device);
  if (!code) code = cu.attribute(&minor, SW_MINOR, device);
  if (code) return SW_FAIL("GPU %d does not say what it is: %s", number, sw_why(code));
  for (int i = 0; i < SW_TARGETS; ++i)
    if (sw_runs(&sw_targets[i], major, minor) && (best < 0 || sw_targets[i].minor > sw_targets[best].minor)) best = i;
  if (best >= 0) {
    *chosen = best;
    return 0;
  }
  char name[128] = "?";
  cu.device_name(name, sizeof name, device);
  return SW_FAIL("GPU %d (%s) is sm_%d%d, this library has code for " SW_TARGET_NAMES ": take one for sm_%d%d", number,
                 name, major, minor, major, minor);
}

// Make a GPU ready, under the lock.
static int sw_prepare(int number) {
  if (!sw_is_ready) {
    if (sw_find_driver()) return -1;
    __atomic_store_n(&sw_is_ready, 1, __ATOMIC_RELEASE);
  }
  if (number < 0 || number >= sw_count) return SW_FAIL("there is no GPU %d: the driver finds %d", number, sw_count);
  sw_device *own = &sw_devices[number];
  if (own->is_ready) return 0;
  int device = 0, target = 0;
  int code = cu.device(&device, number);
  if (code) return SW_FAIL("GPU %d cannot be used: %s", number, sw_why(code));
  if (sw_choose_target(number, device, &target)) return -1;
  code = cu.retain(&own->context, device);
  if (code) return SW_FAIL("GPU %d cannot be used: %s", number, sw_why(code));
  own->target = target;
  __atomic_store_n(&own->is_ready, 1, __ATOMIC_RELEASE);
  return 0;
}

static sw_device *sw_device_of(int number) {
  if (__atomic_load_n(&sw_is_ready, __ATOMIC_ACQUIRE) && number >= 0 && number < sw_count &&
      __atomic_load_n(&sw_devices[number].is_ready, __ATOMIC_ACQUIRE))
    return &sw_devices[number];
  pthread_mutex_lock(&sw_lock);
  int failed = sw_prepare(number);
  pthread_mutex_unlock(&sw_lock);
  return failed ? NULL : &sw_devices[number];
}

// -- a call ----------------------------------------------------------------------------------------------------------
typedef struct {
  int number, is_pushed;
  sw_device *device;
  sw_handle stream;
  void *tensor;
  uint64_t allocated;
  char *memory;
} sw_call;

static int sw_begin(sw_call *call, int number) {
  *call = (sw_call){.number = number, .device = sw_device_of(number)};
  if (!call->device) return -1;
  sw_handle current = NULL;
  int code = cu.current(&current);
  if (!code && current != call->device->context) {
    code = cu.push(call->device->context);
    call->is_pushed = !code;
  }
  if (code) return SW_FAIL("GPU %d cannot be used: %s", number, sw_why(code));
  call->stream = TVMFFIEnvGetStream(SW_CUDA, number);
  return 0;
}

// The call's scratch memory: of the caller's framework where tensors of one are passed, else of the driver. Both give
// it back in the order of the stream, and both a graph can capture.
static int sw_allocate(sw_call *call, int64_t bytes) {
  if (bytes <= 0) return 0;
  if (bytes > SW_MAX_BYTES)
    return SW_FAIL("a call would take %lld bytes of scratch memory, more than any GPU has", (long long)bytes);
  if (TVMFFIEnvGetDLPackManagedTensorAllocator()) {
    int64_t stride = 1;
    sw_tensor like = {.device_type = SW_CUDA, .device = call->number, .dims = 1, .code = SW_UINT, .bits = 8,
                      .lanes = 1, .shape = &bytes, .strides = &stride};
    if (TVMFFIEnvTensorAlloc(&like, &call->tensor)) return -1;
    call->memory = ((sw_tensor *)((char *)call->tensor + SW_OBJECT_BYTES))->data;
    return 0;
  }
  int code = cu.allocate(&call->allocated, (size_t)bytes, call->stream);
  if (code)
    return SW_FAIL("GPU %d has no %lld bytes of scratch memory: %s", call->number, (long long)bytes, sw_why(code));
  call->memory = (char *)(uintptr_t)call->allocated;
  return 0;
}

static int sw_finish(sw_call *call, int failed) {
  if (call->tensor) TVMFFIObjectDecRef(call->tensor);
  if (call->allocated) {
    int code = cu.release(call->allocated, call->stream);
    if (code && !failed) failed = SW_FAIL("scratch memory cannot be given back: %s", sw_why(code));
  }
  if (call->is_pushed) {
    sw_handle own;
    cu.pop(&own);
  }
  return failed;
}

// Load a function for the call's GPU, under the lock. Loading is not what a capture on another stream may forbid.
static int sw_load(sw_call *call, int function) {
  const sw_code *code = &sw_codes[function][call->device->target];
  if (call->device->functions[function]) return 0;
  sw_handle module = NULL, loaded = NULL;
  int mode = SW_RELAXED;
  int failed = cu.capture_mode(&mode);
  if (!failed) failed = cu.load(&module, code->binary);
  if (!failed) failed = cu.function(&loaded, module, code->name);
  if (!failed && code->shared > SW_FREE_SHARED_BYTES) failed = cu.set(loaded, SW_DYNAMIC_SHARED, (int)code->shared);
  cu.capture_mode(&mode);
  if (failed) return SW_FAIL("%s cannot be loaded to GPU %d: %s", code->name, call->number, sw_why(failed));
  __atomic_store_n(&call->device->functions[function], loaded, __ATOMIC_RELEASE);
  return 0;
}

// Whether a grid has programs: 1, or 0 where there is nothing to do, or -1 for one that no GPU takes.
static int sw_is_grid(const int64_t grid[3]) {
  if (grid[0] <= 0 || grid[1] <= 0 || grid[2] <= 0) return 0;
  if (grid[0] <= INT32_MAX && grid[1] <= UINT16_MAX && grid[2] <= UINT16_MAX) return 1;
  return SW_REFUSE("the operands are too large: a grid of %lld x %lld x %lld programs", (long long)grid[0],
                   (long long)grid[1], (long long)grid[2]);
}

static int sw_launch(sw_call *call, int function, const int64_t grid[3], void **parameters) {
  sw_handle loaded = __atomic_load_n(&call->device->functions[function], __ATOMIC_ACQUIRE);
  if (!loaded) {
    pthread_mutex_lock(&sw_lock);
    int failed = sw_load(call, function);
    pthread_mutex_unlock(&sw_lock);
    if (failed) return -1;
    loaded = call->device->functions[function];
  }
  const sw_code *code = &sw_codes[function][call->device->target];
  int failed = cu.launch(loaded, (unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2], code->threads, 1, 1,
                         code->shared, call->stream, parameters, NULL);
  return failed ? SW_FAIL("%s cannot be launched on GPU %d: %s", code->name, call->number, sw_why(failed)) : 0;
}

// -- what operands are checked for -----------------------------------------------------------------------------------
static int sw_check_size(const char *name, int64_t size) {
  if (size <= INT32_MAX) return 0;
  return SW_REFUSE("%s is %lld: kernels take sizes of up to %d", name, (long long)size, INT32_MAX);
}

static int sw_check_operand(const char *name, const void *data, int64_t elements, int64_t most) {
  if (elements > most)
    return SW_REFUSE("%s has %lld elements: this kernel takes up to %lld", name, (long long)elements, (long long)most);
  if (!((uintptr_t)data % SW_ALIGNMENT)) return 0;
  return SW_REFUSE("%s begins at an address that is no multiple of %d: pass a tensor that begins where its memory does",
                   name, SW_ALIGNMENT);
}

// -- tensor maps -----------------------------------------------------------------------------------------------------
#if SW_MAPS
// Drivers up to CUDA 13.1 set a bit in the maps of matrices below 128 KiB that must not be set there: CUTLASS and
// Triton take it away as well.
enum { SW_LAST_WITH_BIT = 13010, SW_SMALL_BYTES = 128 << 10 };
static const uint64_t sw_bit = UINT64_C(1) << 21;

static int sw_encode(sw_call *call, int function, int place, sw_map *map, void *data, int64_t rows, int64_t columns) {
  const sw_code *code = &sw_codes[function][call->device->target];
  const sw_box *box = &code->boxes[place];
  const uint64_t sizes[] = {(uint64_t)columns, (uint64_t)rows};
  const uint64_t strides[] = {(uint64_t)(columns * box->bytes)};
  const uint32_t sides[] = {box->columns, box->rows}, steps[] = {1, 1};
  // No interleaving; 2: lines of 128 bytes are brought to L2; what is outside is zero.
  int failed = cu.encode(map, box->element, 2, data, sizes, strides, sides, steps, 0, box->swizzle, 2, 0);
  if (failed)
    return SW_FAIL("%s: no tensor map of %lld x %lld elements of %d bytes at %p: %s", code->name, (long long)rows,
                   (long long)columns, box->bytes, data, sw_why(failed));
  if (sw_version <= SW_LAST_WITH_BIT && rows * columns * box->bytes < SW_SMALL_BYTES) map->words[1] &= ~sw_bit;
  return 0;
}
#endif

// -- what is asked at loading ----------------------------------------------------------------------------------------
// check(): raises what keeps this library from running on every GPU here. check(number): on that one.
__attribute__((visibility("default"))) int __tvm_ffi_check(void *self, const sw_any *arguments, int32_t count,
                                                           sw_any *result) {
  (void)self;
  *result = (sw_any){0};
  int number = count ? (int)arguments[0].value.number : 0, failed;
  pthread_mutex_lock(&sw_lock);
  do failed = sw_prepare(number);
  while (failed && !count && ++number < sw_count);
  pthread_mutex_unlock(&sw_lock);
  return failed;
}
