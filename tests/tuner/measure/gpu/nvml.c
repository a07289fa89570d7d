// A stand-in for libnvidia-ml.so.1: the clocks of an H100 that is held down by its power limit.
#include <stdio.h>
#include <string.h>

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device) {
  static int own;
  *device = &own;
  return strlen(text) == 16 ? 0 : 6;
}
int nvmlSystemGetDriverVersion(char *text, unsigned room) {
  snprintf(text, room, "570.86.15");
  return 0;
}
// Falls with every second question.
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *mhz) {
  static unsigned asked;
  (void)device;
  *mhz = which == 2 ? 2619 : asked++ % 2 ? 1410 : 1980;
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void *device, int which, unsigned *mhz) {
  (void)device;
  *mhz = which == 1 ? 1980 : 2619;
  return 0;
}
int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *milliwatts) {
  (void)device;
  *milliwatts = 650000;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) {
  (void)device;
  *bits = 0x4 | 0x20 | 0x1;
  return 0;
}
