/* Penstock's C interface: compiled networks (docs/file-format.md) from C and C++.
 *
 *     penstock_error error;
 *     penstock_engine* engine;
 *     if (penstock_load("net.penstock", 1, &engine, &error) != PENSTOCK_OK) { puts(error.message); return 1; }
 *     const int64_t shape[4] = {1, 3, 224, 224};
 *     float* scores = malloc(penstock_output_size(engine) * sizeof(float));
 *     penstock_run(engine, images, shape, 0.5, scores, &error);
 *     penstock_free(engine);
 *
 * No function throws, keeps global state or prints. Several threads may use one engine at the same time; only
 * penstock_free must be the last call. Functions that can fail return a penstock_status and, unless `error` is null, say what was
 * wrong there: the caller's own, so that threads do not share it. */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PENSTOCK_API __attribute__((visibility("default")))
#else
#define PENSTOCK_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct penstock_engine penstock_engine;

typedef enum penstock_status {
  PENSTOCK_OK = 0,
  PENSTOCK_BAD_FILE = 1,  /* cut off, damaged, foreign, newer, or too large for this machine */
  PENSTOCK_BAD_INPUT = 2, /* an argument out of range, or images with values that are not finite */
  PENSTOCK_NO_MEMORY = 3,
  PENSTOCK_FAILED = 4 /* anything else; the message tells */
} penstock_status;

typedef struct penstock_error {
  penstock_status status;
  char message[500]; /* UTF-8, always ends with a zero */
} penstock_error;

/* The version of the library, as in "0.1.0". */
PENSTOCK_API const char* penstock_version(void);

/* The network in a file, on the given number of threads (1 to 1024), with the widest
 * instruction set of the machine, or the one that the environment variable PENSTOCK_ISA names (baseline, avx2, avx512, neon). Its
 * weights stay mapped: leave the file as it is, or replace it by renaming. */
PENSTOCK_API penstock_status penstock_load(const char* path, int threads, penstock_engine** engine, penstock_error* error);
/* The same from a file's bytes, which are copied. */
PENSTOCK_API penstock_status penstock_load_memory(const void* bytes, size_t size, int threads, penstock_engine** engine,
                                                  penstock_error* error);
/* Frees the engine; null does nothing. */
PENSTOCK_API void penstock_free(penstock_engine* engine);

/* Channels, height and width of an image. */
PENSTOCK_API void penstock_input_shape(const penstock_engine* engine, int64_t shape[3]);
/* Sizes of one image's result; returns how many there are, 1 to 4. */
PENSTOCK_API int penstock_output_shape(const penstock_engine* engine, int64_t shape[4]);
/* Floats of one image, and of its result. */
PENSTOCK_API int64_t penstock_input_size(const penstock_engine* engine);
PENSTOCK_API int64_t penstock_output_size(const penstock_engine* engine);
/* "avx2" and so on: what the engine runs on. */
PENSTOCK_API const char* penstock_instruction_set(const penstock_engine* engine);

/* Class names, if the file has any (0 if not). The text lives as long as the engine; null for an index out of range. */
PENSTOCK_API int64_t penstock_class_count(const penstock_engine* engine);
PENSTOCK_API const char* penstock_class_name(const penstock_engine* engine, int64_t index);

/* Images come with their shape, and another than the network's is refused.
 *
 * 8-bit pixels of shape (count, height, width, channel) to what the network takes, (count, channel, height, width): value / 255,
 * minus the mean, divided by the deviation that the file gives for the channel. */
PENSTOCK_API penstock_status penstock_prepare(const penstock_engine* engine, const uint8_t* pixels, const int64_t shape[4],
                                              float* images, penstock_error* error);

/* images of shape (count, channel, height, width) to results (count, penstock_output_size).
 * density: the share of channels that gated layers compute, in ]0, 1]; 0 takes the file's own densities. */
PENSTOCK_API penstock_status penstock_run(const penstock_engine* engine, const float* images, const int64_t shape[4],
                                          double density, float* results, penstock_error* error);

/* The steps of a run, for profiles. */
PENSTOCK_API int64_t penstock_step_count(const penstock_engine* engine);
PENSTOCK_API const char* penstock_step_name(const penstock_engine* engine, int64_t index);
/* One image, of shape (1, channel, height, width), `repeats` times; milliseconds[penstock_step_count]: the least time of every step. */
PENSTOCK_API penstock_status penstock_profile(const penstock_engine* engine, const float* image, const int64_t shape[4],
                                              double density, int repeats, double* milliseconds, penstock_error* error);

#ifdef __cplusplus
}
#endif
#endif
