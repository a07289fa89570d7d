// What the parts of the stand-in for NVIDIA's driver share.
#pragma once
#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  INVALID = 1,
  NO_DEVICE = 100,
  BAD_CONTEXT = 201,
  NO_BINARY = 209,
  NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700,
  MAX_PARAMETERS = 64
};
// A function of machine code. Code that runs finds in ``ns`` how many bytes of the GPU were written or copied since the
// last launch, and leaves there the nanoseconds that it takes. It gives what comes of it: 0, HANGS, the error that
// poisons the context, or the error of the launch below zero.
enum { HANGS = 1 };
typedef int (*run_t)(const unsigned *grid, void **parameters, uint64_t *ns);
typedef struct {
  char name[128];
  char target[16];
  int device, count, shared, sizes[MAX_PARAMETERS];
  run_t run;
} function_t;

extern __thread int *current;
int fails(const char *name);
int capability(int device, int *major, int *minor);
#define FAILS() \
  int failed = fails(__func__); \
  if (failed) return failed

// running.c
const char *setting(const char *name);
int hardware(int attribute, int major, int minor);
int is_running(const void *image);
int load_running(void **module, const void *image, int device);
int is_of_running(const void *module);
int function_of_running(void **function, void *module, const char *name);
int run(function_t *function, const unsigned *grid, void **parameters);
