/* What a compiled network sees in an image.
 *
 *     cc -std=c11 classify.c $(pkg-config --cflags --libs penstock) -o classify
 *     ./classify net.penstock image.ppm [density]
 *
 * The image is a binary PPM (P6) of the network's own size; `convert cat.jpg -resize 32x32! cat.ppm` makes one. */
#include <penstock.h>
#include <stdio.h>
#include <stdlib.h>

/* 8-bit pixels (height, width, 3), or null when the file is no PPM of this size. */
static uint8_t* read_ppm(const char* path, int64_t height, int64_t width) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return NULL;
  long w = 0, h = 0, most = 0;
  uint8_t* pixels = NULL;
  const size_t size = (size_t)(height * width * 3);
  if (fscanf(file, "P6 %ld %ld %ld", &w, &h, &most) == 3 && w == width && h == height && most == 255) {
    (void)fgetc(file); /* one space ends the header */
    pixels = malloc(size);
    if (pixels != NULL && fread(pixels, 1, size, file) != size) {
      free(pixels);
      pixels = NULL;
    }
  }
  fclose(file);
  return pixels;
}

int main(int count, char** words) {
  if (count < 3 || count > 4) {
    fprintf(stderr, "usage: classify NET.penstock IMAGE.ppm [density]\n");
    return 2;
  }
  penstock_engine* engine;
  penstock_error error;
  if (penstock_load(words[1], 1, &engine, &error) != PENSTOCK_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  int64_t shape[3];
  penstock_input_shape(engine, shape);
  const int64_t pixels_shape[4] = {1, shape[1], shape[2], shape[0]}, image_shape[4] = {1, shape[0], shape[1], shape[2]};
  int failed = 1;
  uint8_t* pixels = shape[0] == 3 ? read_ppm(words[2], shape[1], shape[2]) : NULL;
  float* image = malloc((size_t)penstock_input_size(engine) * sizeof(float));
  float* scores = malloc((size_t)penstock_output_size(engine) * sizeof(float));
  if (pixels == NULL) {
    fprintf(stderr, "%s: expected a PPM image of %ld x %ld pixels\n", words[2], (long)shape[2], (long)shape[1]);
  } else if (image == NULL || scores == NULL) {
    fprintf(stderr, "out of memory\n");
  } else if (penstock_prepare(engine, pixels, pixels_shape, image, &error) != PENSTOCK_OK ||
             penstock_run(engine, image, image_shape, count == 4 ? atof(words[3]) : 0.0, scores, &error) != PENSTOCK_OK) {
    fprintf(stderr, "%s\n", error.message);
  } else {
    int64_t best = 0;
    for (int64_t i = 1; i < penstock_output_size(engine); ++i)
      if (scores[i] > scores[best]) best = i;
    const char* name = penstock_class_name(engine, best);
    printf("%ld %s %.9g\n", (long)best, name != NULL ? name : "", (double)scores[best]);
    failed = 0;
  }
  free(pixels);
  free(image);
  free(scores);
  penstock_free(engine);
  return failed;
}
