// The host part of a library for NVIDIA GPUs: a call, its scratch memory, its launches on the caller's stream. It
// allocates nothing that outlives it, and waits for nothing, so that a graph may capture it.

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
#if !SW_ALONE
  if (TVMFFIEnvGetDLPackManagedTensorAllocator()) {
    int64_t stride = 1;
    sw_tensor like = {.device_type = SW_CUDA, .device = call->number, .dims = 1, .code = SW_UINT, .bits = 8,
                      .lanes = 1, .shape = &bytes, .strides = &stride};
    if (TVMFFIEnvTensorAlloc(&like, &call->tensor)) {
      void *raised = NULL;
      TVMFFIErrorMoveFromRaised(&raised);
      const sw_error *error = (const sw_error *)((char *)raised + SW_OBJECT_BYTES);
      SW_FAIL("the caller's framework has no %lld bytes of scratch memory on GPU %d: %.*s", (long long)bytes,
              call->number, (int)error->message_size, error->message);
      TVMFFIObjectDecRef(raised);
      return -1;
    }
    call->memory = ((sw_tensor *)((char *)call->tensor + SW_OBJECT_BYTES))->data;
    return 0;
  }
#endif
  int code = cu.allocate(&call->allocated, (size_t)bytes, call->stream);
  if (code)
    return SW_FAIL("GPU %d has no %lld bytes of scratch memory: %s", call->number, (long long)bytes, sw_why(code));
  call->memory = (char *)(uintptr_t)call->allocated;
  return 0;
}

static int sw_finish(sw_call *call, int failed) {
#if !SW_ALONE
  if (call->tensor) TVMFFIObjectDecRef(call->tensor);
#endif
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
