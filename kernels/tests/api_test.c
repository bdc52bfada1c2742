/* The C interface, from C11: a file runs, from its path and from memory; bad input is told and leaves nothing behind.
 *
 *     api_test FILE.penstock */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/penstock.h"

static int failures = 0;

static void expect(int good, const char* what) {
  if (!good) {
    printf("failed: %s\n", what);
    ++failures;
  }
}

static void expect_error(penstock_status found, penstock_status wanted, const penstock_error* error, const char* words) {
  if (found != wanted || error->status != wanted || strstr(error->message, words) == NULL) {
    printf("failed: expected status %d with \"%s\", got %d: %s\n", (int)wanted, words, (int)found, error->message);
    ++failures;
  }
}

static unsigned char* read_all(const char* path, size_t* size) {
  FILE* file = fopen(path, "rb");
  if (file == NULL || fseek(file, 0, SEEK_END) != 0) return NULL;
  *size = (size_t)ftell(file);
  rewind(file);
  unsigned char* bytes = malloc(*size);
  if (bytes != NULL && fread(bytes, 1, *size, file) != *size) *size = 0;
  fclose(file);
  return bytes;
}

static void check_bad_files(const unsigned char* bytes, size_t size, unsigned char* copy) {
  penstock_engine* engine;
  penstock_error error;
  expect_error(penstock_load("/no/such/file", 1, &engine, &error), PENSTOCK_BAD_FILE, &error, "/no/such/file");
  expect_error(penstock_load(NULL, 1, &engine, &error), PENSTOCK_BAD_INPUT, &error, "path");
  expect_error(penstock_load_memory(bytes, size, 0, &engine, &error), PENSTOCK_BAD_INPUT, &error, "threads");
  expect_error(penstock_load_memory(bytes, size, 1, NULL, &error), PENSTOCK_BAD_INPUT, &error, "engine");
  expect_error(penstock_load_memory(bytes, 10, 1, &engine, &error), PENSTOCK_BAD_FILE, &error, "too few");
  expect_error(penstock_load_memory(bytes, size - 1, 1, &engine, &error), PENSTOCK_BAD_FILE, &error, "cut off");
  memcpy(copy, bytes, size);
  copy[0] = 'x';
  expect_error(penstock_load_memory(copy, size, 1, &engine, &error), PENSTOCK_BAD_FILE, &error, "not a compiled network");
  copy[0] = bytes[0];
  copy[8] = 9;
  expect_error(penstock_load_memory(copy, size, 1, &engine, &error), PENSTOCK_BAD_FILE, &error, "newer");
  copy[8] = bytes[8];
  copy[size - 1] ^= 1;
  expect_error(penstock_load_memory(copy, size, 1, &engine, &error), PENSTOCK_BAD_FILE, &error, "damaged");
  expect(engine == NULL, "a failed load leaves null");
  expect(penstock_load_memory(copy, size, 1, &engine, NULL) == PENSTOCK_BAD_FILE, "the error may be null");
}

int main(int count, char** words) {
  penstock_engine *first, *second;
  penstock_error error;
  size_t size = 0;
  unsigned char* bytes = count == 2 ? read_all(words[1], &size) : NULL;
  unsigned char* copy = malloc(size + 1);
  if (bytes == NULL || copy == NULL || penstock_load(words[1], 1, &first, &error) != PENSTOCK_OK ||
      penstock_load_memory(bytes, size, 2, &second, &error) != PENSTOCK_OK) {
    printf("cannot load %s: %s\n", count == 2 ? words[1] : "", bytes == NULL ? "no such file" : error.message);
    return 1;
  }
  check_bad_files(bytes, size, copy);
  free(bytes);
  free(copy);

  int64_t shape[3], result[4];
  penstock_input_shape(first, shape);
  const int64_t in = penstock_input_size(first), out = penstock_output_size(first);
  expect(in == shape[0] * shape[1] * shape[2], "the input's size is the product of its shape");
  expect(penstock_output_shape(first, result) == 1 && result[0] == out, "the output's shape");
  expect(penstock_class_count(first) == out && penstock_class_name(first, 0) != NULL, "class names");
  expect(penstock_class_name(first, -1) == NULL && penstock_class_name(first, out) == NULL, "class names out of range");
  expect(strlen(penstock_version()) > 0 && strlen(penstock_instruction_set(first)) > 0, "words");

  const int64_t pixels_shape[4] = {2, shape[1], shape[2], shape[0]}, none[4] = {0, shape[0], shape[1], shape[2]};
  const int64_t two[4] = {2, shape[0], shape[1], shape[2]}, one[4] = {1, shape[0], shape[1], shape[2]};
  const int64_t fewer[4] = {-1, shape[0], shape[1], shape[2]}, lower[4] = {2, shape[0], shape[1] - 1, shape[2]};
  uint8_t* pixels = malloc((size_t)(2 * in));
  float* images = malloc((size_t)(2 * in) * sizeof(float));
  float* results = malloc((size_t)(4 * out) * sizeof(float));
  double* times = malloc((size_t)penstock_step_count(first) * sizeof(double));
  for (int64_t i = 0; i < 2 * in; ++i) pixels[i] = (uint8_t)(i * 37 % 256);
  expect(penstock_prepare(first, pixels, pixels_shape, images, &error) == PENSTOCK_OK, "prepare");
  expect(penstock_run(first, images, two, 0.0, results, &error) == PENSTOCK_OK, "run");
  expect(penstock_run(second, images, two, 0.0, results + 2 * out, &error) == PENSTOCK_OK, "run on two threads");
  expect(memcmp(results, results + 2 * out, (size_t)(2 * out) * sizeof(float)) == 0, "threads do not change results");
  for (int64_t i = 0; i < 2 * out; ++i) expect(isfinite(results[i]), "results are finite");
  expect(penstock_run(first, NULL, none, 0.5, NULL, &error) == PENSTOCK_OK, "no images");
  expect(penstock_profile(first, images, one, 0.5, 3, times, &error) == PENSTOCK_OK && times[0] >= 0, "profile");
  expect(penstock_step_name(first, 0) != NULL && penstock_step_name(first, -1) == NULL, "names of steps");
  expect_error(penstock_run(first, images, two, 1.5, results, &error), PENSTOCK_BAD_INPUT, &error, "density");
  expect_error(penstock_run(first, images, two, NAN, results, &error), PENSTOCK_BAD_INPUT, &error, "density");
  expect_error(penstock_run(first, images, fewer, 0.5, results, &error), PENSTOCK_BAD_INPUT, &error, "got (-1, ");
  expect_error(penstock_run(first, NULL, one, 0.5, results, &error), PENSTOCK_BAD_INPUT, &error, "null");
  expect_error(penstock_profile(first, images, one, 0.5, 0, times, &error), PENSTOCK_BAD_INPUT, &error, "repeats");
  expect_error(penstock_profile(first, images, two, 0.5, 1, times, &error), PENSTOCK_BAD_INPUT, &error, "one image");
  expect_error(penstock_run(first, images, NULL, 0.5, results, &error), PENSTOCK_BAD_INPUT, &error, "shape");
  char words_of_shape[60];
  snprintf(words_of_shape, sizeof words_of_shape, "expected (count, %d, %d, %d), got (2, %d, %d, ", (int)shape[0], (int)shape[1],
           (int)shape[2], (int)shape[0], (int)shape[1] - 1);
  expect_error(penstock_run(first, images, lower, 0.5, results, &error), PENSTOCK_BAD_INPUT, &error, words_of_shape);
  expect_error(penstock_prepare(first, pixels, two, images, &error), PENSTOCK_BAD_INPUT, &error, "shape: expected (count, ");
  // Float32 has room for pixels of 0 to 255, codes have not.
  for (int64_t i = 0; i < in; ++i) images[in + i] = (float)(i % 256);
  const char* const last = strrchr(words[1], '/');  // a folder may be called int8 too
  if (strstr(last != NULL ? last : words[1], "int8") != NULL)
    expect_error(penstock_run(first, images, two, 0.5, results, &error), PENSTOCK_BAD_INPUT, &error,
                 "image 1 of the batch: values lie");
  images[in + 1] = NAN;
  expect_error(penstock_run(first, images, two, 0.5, results, &error), PENSTOCK_BAD_INPUT, &error, "image 1");
  free(pixels);
  free(images);
  free(results);
  free(times);
  penstock_free(first);
  penstock_free(second);
  penstock_free(NULL);
  printf(failures == 0 ? "the C interface holds\n" : "%d failures\n", failures);
  return failures != 0;
}
