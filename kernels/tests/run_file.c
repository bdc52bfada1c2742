/* A compiled file on images that another program chose: what two builds, or two machines, are compared by.
 *
 *     run_file FILE.penstock IMAGES RESULTS THREADS DENSITY...
 *
 * IMAGES holds float32 images one after the other, RESULTS receives their results, first all at the first density, then all at the
 * next; a density of 0 takes the file's own. Prints the instruction set. */
#include <stdio.h>
#include <stdlib.h>

#include "api/penstock.h"

static float* read_floats(const char* path, size_t* count) {
  FILE* file = fopen(path, "rb");
  float* values = NULL;
  if (file != NULL && fseek(file, 0, SEEK_END) == 0) {
    *count = (size_t)ftell(file) / sizeof(float);
    rewind(file);
    values = malloc(*count * sizeof(float) + 1);
    if (values != NULL && fread(values, sizeof(float), *count, file) != *count) *count = 0;
  }
  if (file != NULL) fclose(file);
  return values;
}

int main(int count, char** words) {
  if (count < 6) {
    fprintf(stderr, "usage: run_file FILE.penstock IMAGES RESULTS THREADS DENSITY...\n");
    return 2;
  }
  penstock_engine* engine;
  penstock_error error;
  if (penstock_load(words[1], atoi(words[4]), &engine, &error) != PENSTOCK_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  size_t floats = 0;
  float* images = read_floats(words[2], &floats);
  const int64_t in = penstock_input_size(engine), out = penstock_output_size(engine), number = (int64_t)floats / in;
  int64_t shape[4] = {number, 0, 0, 0};
  penstock_input_shape(engine, shape + 1);
  float* results = malloc((size_t)(number * out) * sizeof(float) + 1);
  FILE* to = fopen(words[3], "wb");
  int failed = images == NULL || results == NULL || to == NULL || number < 1 || (int64_t)floats % in != 0;
  if (failed) fprintf(stderr, "%s: expected whole images of %ld floats each\n", words[2], (long)in);
  for (int i = 5; i < count && !failed; ++i) {
    if (penstock_run(engine, images, shape, atof(words[i]), results, &error) != PENSTOCK_OK) {
      fprintf(stderr, "%s\n", error.message);
      failed = 1;
    } else {
      failed = fwrite(results, sizeof(float), (size_t)(number * out), to) != (size_t)(number * out);
    }
  }
  if (to != NULL && fclose(to) != 0) failed = 1;
  if (!failed) printf("%s\n", penstock_instruction_set(engine));
  free(images);
  free(results);
  penstock_free(engine);
  return failed;
}
