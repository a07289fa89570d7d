// Calls a kernel once: `emulated_call LIBRARY FUNCTION CALL`. It gives the library what kernels want of TVM's runtime.
//
// The file CALL holds 64-bit integers, and between them bytes: the number of tensors; for each of them DLPack's code and
// the bits of its dtype, its number of dims, the dims, where it begins in the memory around it, the size of that memory
// in bytes, and that memory. The memory of all tensors after the call goes to standard output, in the same order.

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <tvm/ffi/c_api.h>
#include <tvm/runtime/c_backend_api.h>

enum { MAX_TENSORS = 16, MAX_DIMS = 8, ALIGNMENT = 64 };

static void fail(const char *what, const char *which) {
  fprintf(stderr, "%s: %s\n", what, which ? which : "");
  exit(1);
}

void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts, int32_t count) {
  fprintf(stderr, "%s: ", kind);
  for (int32_t i = 0; i < count; i++) fputs(parts[i] ? parts[i] : "", stderr);
  fputs("\n", stderr);
}

static void *allocate(int64_t size) {
  void *memory = aligned_alloc(ALIGNMENT, (size / ALIGNMENT + 1) * ALIGNMENT);
  if (!memory) fail("out of memory", NULL);
  return memory;
}

static void *allocate_workspace(int type, int id, uint64_t size, int code, int bits) {
  (void)type, (void)id, (void)code, (void)bits;
  return allocate((int64_t)size);
}

static int free_workspace(int type, int id, void *memory) {
  (void)type, (void)id;
  free(memory);
  return 0;
}

// One after the other: whoever waits for another one would wait for ever, and kernels do not.
static int launch(FTVMParallelLambda part, void *data, int count) {
  TVMParallelGroupEnv environment = {NULL, count ? count : 1};
  for (int i = 0; i < environment.num_task; i++)
    if (part(i, &environment, data)) return -1;
  return 0;
}

// A library has a pointer for each function of the runtime that it calls, and the loader sets it.
static void provide(void *library, const char *name, void *function) {
  void **place = dlsym(library, name);
  if (place) *place = function;
}

static void read_all(void *to, int64_t size, FILE *from) {
  if (size && fread(to, (size_t)size, 1, from) != 1) fail("the call ends early", NULL);
}

static int64_t number(FILE *from) {
  int64_t value;
  read_all(&value, sizeof value, from);
  return value;
}

static void read_tensor(FILE *from, DLTensor *tensor, int64_t *shape, char **memory, int64_t *size) {
  uint8_t code = (uint8_t)number(from), bits = (uint8_t)number(from);
  int32_t dims = (int32_t)number(from);
  if (dims > MAX_DIMS) fail("too many dims", NULL);
  for (int32_t i = 0; i < dims; i++) shape[i] = number(from);
  // Without gaps: the last MAX_DIMS numbers of `shape` are the strides.
  int64_t stride = 1, *strides = shape + MAX_DIMS;
  for (int32_t i = dims; i-- > 0; stride *= shape[i]) strides[i] = stride;
  int64_t begin = number(from);
  *size = number(from);
  *memory = allocate(*size);
  read_all(*memory, *size, from);
  *tensor = (DLTensor){*memory + begin, {kDLCPU, 0}, dims, {code, bits, 1}, shape, strides, 0};
}

int main(int count, char **arguments) {
  if (count != 4) fail("usage", "emulated_call LIBRARY FUNCTION CALL");
  void *library = dlopen(arguments[1], RTLD_NOW | RTLD_GLOBAL);
  if (!library) fail("the library cannot be loaded", dlerror());
  provide(library, "__TVMBackendAllocWorkspace", (void *)allocate_workspace);
  provide(library, "__TVMBackendFreeWorkspace", (void *)free_workspace);
  provide(library, "__TVMBackendParallelLaunch", (void *)launch);
  TVMFFISafeCallType function = (TVMFFISafeCallType)dlsym(library, arguments[2]);
  if (!function) fail("there is no such function", arguments[2]);

  FILE *call = fopen(arguments[3], "rb");
  if (!call) fail("there is no such file", arguments[3]);
  int64_t tensors = number(call), sizes[MAX_TENSORS], shapes[MAX_TENSORS][2 * MAX_DIMS];
  if (tensors > MAX_TENSORS) fail("too many tensors", NULL);
  DLTensor tensor[MAX_TENSORS];
  TVMFFIAny values[MAX_TENSORS] = {0}, result = {0};
  char *memory[MAX_TENSORS];
  for (int64_t i = 0; i < tensors; i++) {
    read_tensor(call, &tensor[i], shapes[i], &memory[i], &sizes[i]);
    values[i].type_index = kTVMFFIDLTensorPtr;
    values[i].v_ptr = &tensor[i];
  }
  if (function(NULL, values, (int32_t)tensors, &result)) fail("the kernel raised", arguments[2]);
  for (int64_t i = 0; i < tensors; i++)
    if (sizes[i] && fwrite(memory[i], (size_t)sizes[i], 1, stdout) != 1) fail("no place to write to", NULL);
  return 0;
}
