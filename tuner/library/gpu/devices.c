// The host part of a library for NVIDIA GPUs: the driver is found, and a GPU made ready; calls.c has the rest.
// Before it stand SW_FUNCTIONS, SW_TARGETS and other counts of what a library holds; behind both, the tables of these.

// dlopen has moved to the C library in glibc 2.34: the older name is found in both places.
#if defined(__x86_64__) && defined(__GLIBC__)
__asm__(".symver dlopen, dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
__asm__(".symver dlerror, dlerror@GLIBC_2.2.5");
#endif
#define SW_HIDDEN __attribute__((visibility("hidden")))

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

#if SW_ALONE
// Without it, as in bundles (tuner/bundle): whoever calls is handed the problem as text, work goes to the default stream,
// and scratch memory is the driver's.
static __thread char sw_problem[2048];
static void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message) {
  (void)kind;
  snprintf(sw_problem, sizeof sw_problem, "%s", message);
}
static void *TVMFFIEnvGetStream(int32_t device_type, int32_t device) {
  (void)device_type, (void)device;
  return NULL;
}
#else
extern void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
extern void *TVMFFIEnvGetStream(int32_t device_type, int32_t device);
extern void *TVMFFIEnvGetDLPackManagedTensorAllocator(void);
extern int TVMFFIEnvTensorAlloc(sw_tensor *like, void **tensor);
extern int TVMFFIObjectDecRef(void *object);
extern void TVMFFIErrorMoveFromRaised(void **error);

// An error object behind its header.
typedef struct {
  const char *kind;
  size_t kind_size;
  const char *message;
  size_t message_size;
} sw_error;
#endif

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
  _Alignas(128) uint64_t words[16];
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
  if (!library)
    return SW_FAIL("this library is for GPUs (" SW_TARGET_NAMES "), and no NVIDIA driver is here (%s): install one, or take "
                   "a library for this CPU", dlerror());
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
