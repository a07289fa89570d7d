// The part of the stand-in that runs: memory, copies and events with a clock of their own, code that is a shared object
// of this CPU or PTX, and contexts that are poisoned. A launch runs at once; what comes of it shows when it is waited
// for, as on a GPU.
#include "driver.h"
#include <dlfcn.h>
#include <elf.h>
#include <unistd.h>

enum { SETTINGS = 16, PER_NS = 2000 };
typedef struct {
  int device;
  void *code;
} running_t;
static running_t modules[4096];
static int module_count;
static uint64_t now_ns, moved;
static int poison, is_hung;

// -- settings ---------------------------------------------------------------------------------------------------------
static void path_of(const char *name, char *path, size_t room) {
  Dl_info own;
  dladdr((void *)(uintptr_t)path_of, &own);
  snprintf(path, room, "%s", own.dli_fname);
  char *end = strrchr(path, '/');
  snprintf(end ? end + 1 : path, room - (size_t)(end ? end + 1 - path : 0), "%s", name);
}
const char *setting(const char *name) {
  static __thread char texts[SETTINGS][128];
  static __thread int turn;
  const char *given = getenv(name);
  if (given) return given;
  char path[4096], line[256];
  path_of("fake.conf", path, sizeof path);
  FILE *file = fopen(path, "r");
  char *found = NULL;
  while (file && !found && fgets(line, sizeof line, file)) {
    size_t size = strlen(name);
    if (strncmp(line, name, size) || line[size] != '=') continue;
    line[strcspn(line, "\n")] = 0;
    found = texts[turn++ % SETTINGS];
    snprintf(found, sizeof *texts, "%.120s", line + size + 1);
  }
  if (file) fclose(file);
  return found;
}
// The numbers of an H100, and of an A100 for sm_80; L2 is small, since several times its bytes are written and copied.
int hardware(int attribute, int major, int minor) {
  int is_a100 = major == 8 && !minor;
  switch (attribute) {
  case 16: return is_a100 ? 108 : 132;
  case 13: return is_a100 ? 1410000 : 1980000;
  case 36: return is_a100 ? 1215000 : 2619000;
  case 37: return 5120;
  case 38: return 1 << 20;
  default: return 0;
  }
}
int cuDeviceGetPCIBusId(char *text, int room, int device) {
  char path[4096];
  path_of("", path, sizeof path);
  unsigned hash = 5381;
  for (char *at = path; *at; ++at) hash = 33 * hash + (unsigned char)*at;
  snprintf(text, (size_t)room, "%08x:%02x:00.0", hash, device);
  return 0;
}

// -- code that runs -----------------------------------------------------------------------------------------------------
static int is_elf(const void *image) { return !memcmp(image, ELFMAG, SELFMAG); }
static int is_ptx(const void *image) { return strstr((const char *)image, ".version ") == image || strstr((const char *)image, "\n.version ") == image; }
int is_running(const void *image) { return is_elf(image) || is_ptx(image); }
int is_of_running(const void *module) {
  return (const running_t *)module >= modules && (const running_t *)module < modules + module_count;
}
int load_running(void **module, const void *image, int device) {
  if (!current) return BAD_CONTEXT;
  if (poison) return poison;
  running_t *made = &modules[module_count];
  *made = (running_t){.device = device};
  if (is_elf(image)) {
    const Elf64_Ehdr *head = image;
    size_t size = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
    char path[] = "./fake-code-XXXXXX";
    int file = mkstemp(path), is_whole = file >= 0 && write(file, image, size) == (ssize_t)size;
    if (file >= 0) close(file);
    made->code = is_whole ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    unlink(path);
    if (!made->code) return NO_BINARY;
  }
  ++module_count;
  *module = made;
  return 0;
}
// Each turn of its loop takes as long as a setting says: the clock of the GPU.
static int spin(const unsigned *grid, void **parameters, uint64_t *ns) {
  (void)grid;
  const char *wanted = setting("FAKE_CUDA_LOOP_NS");
  *ns = *(uint32_t *)parameters[1] * (uint64_t)(wanted ? atoi(wanted) : 20);
  return 0;
}
int function_of_running(void **function, void *module, const char *name) {
  running_t *own = module;
  function_t *made = calloc(1, sizeof *made);
  snprintf(made->name, sizeof made->name, "%s", name);
  made->device = own->device;
  made->run = own->code ? (run_t)(uintptr_t)dlsym(own->code, name) : strcmp(name, "spin") ? NULL : spin;
  *function = made;
  return made->run ? 0 : NOT_FOUND;
}
int run(function_t *function, const unsigned *grid, void **parameters) {
  if (fails("cuLaunchKernel")) return fails("cuLaunchKernel");
  if (poison) return poison;
  if (is_hung) return 0;
  uint64_t ns = moved;
  moved = 0;
  int result = function->run(grid, parameters, &ns);
  now_ns += ns;
  if (result == HANGS) is_hung = 1;
  if (result > HANGS) poison = result;
  return result < 0 ? -result : 0;
}

// -- waiting, events, memory ------------------------------------------------------------------------------------------
static int finish(void) {
  while (is_hung) pause();
  return poison;
}
int cuCtxSetCurrent(void *context) {
  current = context;
  return 0;
}
int cuCtxSynchronize(void) { return finish(); }
int cuEventCreate(void **event, unsigned flags) {
  (void)flags;
  *event = calloc(1, sizeof(uint64_t));
  return 0;
}
int cuEventRecord(uint64_t *event, void *stream) {
  (void)stream;
  *event = now_ns;
  return poison;
}
int cuEventSynchronize(void *event) {
  (void)event;
  return finish();
}
int cuEventElapsedTime(float *milliseconds, const uint64_t *first, const uint64_t *second) {
  *milliseconds = (float)(*second - *first) / 1e6f;
  return poison;
}
int cuMemAlloc_v2(uint64_t *memory, size_t bytes) {
  FAILS();
  const char *most = setting("FAKE_CUDA_BYTES");
  if (poison) return poison;
  if (most && bytes > (size_t)atoll(most)) return 2;
  void *made = aligned_alloc(512, (bytes + 511) / 512 * 512);
  if (!made) return 2;
  memset(made, 0xcd, bytes);
  *memory = (uint64_t)(uintptr_t)made;
  return 0;
}
int cuMemFree_v2(uint64_t memory) {
  int result = finish();
  free((void *)(uintptr_t)memory);
  return result;
}
int cuMemcpyHtoD_v2(uint64_t target, const void *source, size_t bytes) {
  int result = finish();
  if (!result) memcpy((void *)(uintptr_t)target, source, bytes);
  return result;
}
int cuMemcpyDtoH_v2(void *target, uint64_t source, size_t bytes) {
  int result = finish();
  if (!result) memcpy(target, (const void *)(uintptr_t)source, bytes);
  return result;
}
int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *stream) {
  (void)stream;
  now_ns += 2 * bytes / PER_NS;
  moved += bytes;
  if (!poison) memcpy((void *)(uintptr_t)target, (const void *)(uintptr_t)source, bytes);
  return poison;
}
int cuMemsetD8Async(uint64_t target, unsigned char value, size_t bytes, void *stream) {
  (void)stream;
  now_ns += bytes / PER_NS;
  moved += bytes;
  if (!poison) memset((void *)(uintptr_t)target, value, bytes);
  return poison;
}
