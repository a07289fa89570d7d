// A stand-in for libcuda.so.1: it does nothing on any GPU, and writes down what it is asked for, one JSON text a line.
// "Device memory" is memory of this process. Machine code is text: FAKE, a target, and for each function its name and
// the sizes of its parameters; running.c has code that runs. FAKE_CUDA_GPUS are capabilities, as in 9.0,8.6;
// FAKE_CUDA_FAIL a function and a code. What the environment does not say is read from fake.conf beside this library.
#include "driver.h"
#include <pthread.h>

static char *log_text;
static size_t log_size, log_room;
static int contexts[16];
__thread int *current;
static int (*on_launch)(const char *);
static pthread_mutex_t writing = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static void note(const char *format, ...) {
  va_list arguments;
  pthread_mutex_lock(&writing);
  if (log_room - log_size < 1 << 16) log_text = realloc(log_text, log_room = 2 * log_room + (1 << 17));
  va_start(arguments, format);
  log_size += (size_t)vsnprintf(log_text + log_size, log_room - log_size, format, arguments);
  va_end(arguments);
  pthread_mutex_unlock(&writing);
}

const char *fake_log(void) { return log_text ? log_text : ""; }
void fake_forget(void) {
  log_size = 0;
  if (log_text) *log_text = 0;
}
void fake_on_launch(int (*called)(const char *)) { on_launch = called; }

int fails(const char *name) {
  const char *wanted = setting("FAKE_CUDA_FAIL"), *equals = wanted ? strchr(wanted, '=') : NULL;
  return equals && strlen(name) == (size_t)(equals - wanted) && !strncmp(name, wanted, strlen(name)) ? atoi(equals + 1)
                                                                                                     : 0;
}

int capability(int device, int *major, int *minor) {
  const char *text = setting("FAKE_CUDA_GPUS");
  for (text = text ? text : "9.0"; device && text; --device) {
    text = strchr(text, ',');
    if (text) ++text;
  }
  return text && sscanf(text, "%d.%d", major, minor) == 2;
}

int cuInit(unsigned flags) {
  (void)flags;
  FAILS();
  return 0;
}
int cuDriverGetVersion(int *version) {
  const char *wanted = setting("FAKE_CUDA_VERSION");
  *version = wanted ? atoi(wanted) : 12080;
  return 0;
}
int cuGetErrorName(int code, const char **name) {
  *name = code == 2                 ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == NO_BINARY       ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
          : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
                                    : "CUDA_ERROR_OF_FAKE";
  return 0;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == 2                 ? "out of memory"
          : code == ILLEGAL_ADDRESS ? "an illegal memory access was encountered"
                                    : "as was asked for";
  return 0;
}
int cuDeviceGetCount(int *count) {
  int major, minor;
  FAILS();
  for (*count = 0; *count < 16 && capability(*count, &major, &minor); ++*count);
  return 0;
}
int cuDeviceGet(int *device, int number) {
  *device = number;
  return 0;
}
int cuDeviceGetName(char *name, int room, int device) {
  snprintf(name, (size_t)room, "Fake %d", device);
  return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int major = 0, minor = 0;
  if (!capability(device, &major, &minor)) return NO_DEVICE;
  *value = attribute == 75 ? major : attribute == 76 ? minor : hardware(attribute, major, minor);
  return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
  FAILS();
  note("{\"call\": \"retain\", \"device\": %d}\n", device);
  *context = &contexts[device];
  return 0;
}
int cuCtxGetCurrent(void **context) {
  *context = current;
  return 0;
}
int cuCtxPushCurrent_v2(void *context) {
  if (current) return BAD_CONTEXT;
  current = context;
  return 0;
}
int cuCtxPopCurrent_v2(void **context) {
  *context = current;
  current = NULL;
  return *context ? 0 : BAD_CONTEXT;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
  static __thread int own = 0;
  int before = own;
  note("{\"call\": \"mode\", \"mode\": %d}\n", *mode);
  own = *mode;
  *mode = before;
  return 0;
}
int cuModuleLoadData(void **module, const void *image) {
  FAILS();
  int major = 0, minor = 0, code = 0;
  if (is_running(image)) return load_running(module, image, current ? (int)(current - contexts) : -1);
  if (!current || strncmp(image, "FAKE sm_", 8)) return INVALID;
  capability((int)(current - contexts), &major, &minor);
  code = atoi((const char *)image + 8);
  note("{\"call\": \"load\", \"device\": %d, \"target\": %d}\n", (int)(current - contexts), code);
  *module = (void *)(uintptr_t)image;
  return code / 10 == major && code % 10 <= minor ? 0 : NO_BINARY;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
  if (is_of_running(module)) return function_of_running(function, module, name);
  for (const char *line = module; (line = strchr(line, '\n')); ++line) {
    size_t length = strlen(name);
    if (strncmp(line + 1, name, length) || line[1 + length] != ' ') continue;
    function_t *made = calloc(1, sizeof *made);
    snprintf(made->name, sizeof made->name, "%s", name);
    made->device = (int)(current - contexts);
    const char *at = line + 1 + length;
    for (char *end; made->count < MAX_PARAMETERS; at = end) {
      made->sizes[made->count] = (int)strtol(at, &end, 10);
      if (end == at) break;
      ++made->count;
    }
    *function = made;
    return 0;
  }
  return NOT_FOUND;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  FAILS();
  if (attribute != 8) return INVALID;
  ((function_t *)function)->shared = value;
  return 0;
}
int cuLaunchKernel(void *handle, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
  FAILS();
  function_t *function = handle;
  if (function->run) return run(function, (const unsigned[]){x, y, z}, parameters);
  if (extra || !x || !y || !z || function->device != current - contexts) return INVALID;
  if (shared > (48 << 10) && (int)shared > function->shared) return INVALID;
  pthread_mutex_lock(&writing);  // A line of several parts.
  size_t start = log_size;
  note("{\"call\": \"launch\", \"name\": \"%s\", \"device\": %d, \"grid\": [%u, %u, %u], \"block\": [%u, %u, %u], "
       "\"shared\": %u, \"stream\": %zu, \"parameters\": [", function->name, function->device, x, y, z, bx, by, bz,
       shared, (size_t)stream);
  for (int i = 0; i < function->count; ++i) {
    note("%s\"", i ? ", " : "");
    for (int j = 0; j < function->sizes[i]; ++j) note("%02x", ((unsigned char *)parameters[i])[j]);
    note("\"");
  }
  note("]}\n");
  pthread_mutex_unlock(&writing);
  return on_launch ? on_launch(log_text + start) : 0;
}
int cuMemAllocAsync(uint64_t *memory, size_t bytes, void *stream) {
  FAILS();
  void *made = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(made, 0xcd, bytes);
  *memory = (uint64_t)(uintptr_t)made;
  note("{\"call\": \"allocate\", \"bytes\": %zu, \"address\": %zu, \"stream\": %zu}\n", bytes, (size_t)*memory,
       (size_t)stream);
  return 0;
}
int cuMemFreeAsync(uint64_t memory, void *stream) {
  note("{\"call\": \"free\", \"address\": %zu, \"stream\": %zu}\n", (size_t)memory, (size_t)stream);
  free((void *)(uintptr_t)memory);
  return 0;
}
int cuTensorMapEncodeTiled(uint64_t *map, int element, uint32_t rank, void *data, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
  FAILS();
  if (rank != 2 || (uintptr_t)map % 64 || (uintptr_t)data % 16 || strides[0] % 16 || !sizes[0] || !sizes[1]) return 1;
  if (box[0] > 256 || box[1] > 256 || steps[0] != 1 || steps[1] != 1 || interleave) return 1;
  const uint64_t words[16] = {(uintptr_t)data, UINT64_C(1) << 21, (uint64_t)element, sizes[0], sizes[1], strides[0],
                              box[0], box[1], (uint64_t)swizzle, (uint64_t)promotion, (uint64_t)fill};
  memcpy(map, words, sizeof words);
  return 0;
}

// -- an allocator of a framework, as TVM FFI takes it ------------------------------------------------------------------
typedef struct {
  void *data;
  int32_t device_type, device, dims;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t offset;
} tensor_t;
typedef struct managed {
  uint32_t major, minor;
  void *context;
  void (*deleter)(struct managed *);
  uint64_t flags;
  tensor_t tensor;
  int64_t shape, stride;
} managed_t;

static void give_back(managed_t *own) {
  note("{\"call\": \"given back\", \"address\": %zu}\n", (size_t)own->tensor.data);
  free(own->tensor.data);
  free(own);
}
int fake_allocator(tensor_t *like, managed_t **out, void *context, void (*refuse)(void *, const char *, const char *)) {
  if (fails(__func__)) {
    refuse(context, "RuntimeError", "the framework has no memory");
    return -1;
  }
  managed_t *made = calloc(1, sizeof *made);
  *made = (managed_t){.major = 1, .minor = 1, .deleter = give_back, .tensor = *like, .shape = like->shape[0], .stride = 1};
  made->tensor.data = aligned_alloc(512, ((size_t)made->shape + 511) / 512 * 512);
  memset(made->tensor.data, 0xcd, (size_t)made->shape);
  made->tensor.shape = &made->shape, made->tensor.strides = &made->stride, made->tensor.offset = 0;
  note("{\"call\": \"taken\", \"bytes\": %zu, \"address\": %zu, \"device\": %d}\n", (size_t)made->shape,
       (size_t)made->tensor.data, like->device);
  *out = made;
  return 0;
}
