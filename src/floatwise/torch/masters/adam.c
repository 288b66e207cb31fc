/* SPDX-License-Identifier: Apache-2.0
 * Adam and AdamW on float32 weights that are stored as two halves (see split.py), in one pass over memory.
 *
 * The arithmetic is that of PyTorch's fused kernel for the CPU (ATen/native/cpu/FusedAdamKernel.cpp), operation by
 * operation. Whether a product and a sum are rounded once or twice was up to the compiler there, so both forms are
 * here; the caller finds out which gives PyTorch's bits. Compile with -ffp-contract=off.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* Below this many elements starting threads takes longer than the work: at::internal::GRAIN_SIZE of PyTorch 2.13. */
#define ALONE 32768
/* Threads share a parameter in whole cache lines. */
#define LINE 64

/* What is the same for all parameters of a group. `lerp_weight` is 1 - beta1, `rest` 1 - beta2. */
typedef struct {
  float decay, weight_decay, lerp_weight, beta2, rest, eps, sign;
} Settings;

typedef struct {
  uint16_t *high;
  int16_t *low;
  const void *grad;
  float *average, *square;
  int64_t elements;
  float negative_step_size, correction;
  int32_t grad_is_float32;
} Weight;

INLINE float as_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

INLINE uint32_t as_bits(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}

INLINE float add_product(float a, float b, float c, int fused) { return fused ? fmaf(a, b, c) : a * b + c; }

INLINE void update(const Weight *w, const Settings *s, int64_t start, int64_t stop, int decoupled, int fused,
                   int is_float32) {
  uint16_t *restrict high = w->high;
  int16_t *restrict low = w->low;
  float *restrict average = w->average, *restrict square = w->square;
  const uint16_t *restrict grad16 = w->grad;
  const float *restrict grad32 = w->grad;
  const int is_near = s->lerp_weight < 0.5f;
  const float step = w->negative_step_size, correction = w->correction;
  const float coefficient = is_near ? s->lerp_weight : s->lerp_weight - 1.0f;
#ifdef _OPENMP
#pragma omp simd
#endif
  for (int64_t i = start; i < stop; i++) {
    int32_t lower = low[i];
    if ((high[i] & 0x7fff) == 0 && lower < 0) lower = 0;
    float value = as_float(((uint32_t)high[i] << 16) + (uint32_t)lower);
    float grad = (is_float32 ? grad32[i] : as_float((uint32_t)grad16[i] << 16)) * s->sign;
    if (decoupled)
      value = value * s->decay;
    else
      grad = add_product(value, s->weight_decay, grad, fused);
    float first = fmaf(coefficient, grad - average[i], is_near ? average[i] : grad);
    float second = add_product(s->rest * grad, grad, square[i] * s->beta2, fused);
    average[i] = first;
    square[i] = second;
    value = value + step * first / (sqrtf(second) / correction + s->eps);
    uint32_t bits = as_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
    low[i] = (int16_t)(bits & 0xffffu);
    high[i] = (uint16_t)((bits + 0x8000u) >> 16);
  }
}

static void slice(const Weight *w, const Settings *s, int64_t start, int64_t stop, int decoupled, int fused) {
  switch ((decoupled != 0) * 4 + (fused != 0) * 2 + (w->grad_is_float32 != 0)) {
    case 0: update(w, s, start, stop, 0, 0, 0); break;
    case 1: update(w, s, start, stop, 0, 0, 1); break;
    case 2: update(w, s, start, stop, 0, 1, 0); break;
    case 3: update(w, s, start, stop, 0, 1, 1); break;
    case 4: update(w, s, start, stop, 1, 0, 0); break;
    case 5: update(w, s, start, stop, 1, 0, 1); break;
    case 6: update(w, s, start, stop, 1, 1, 0); break;
    default: update(w, s, start, stop, 1, 1, 1);
  }
}

void floatwise_adam(const Weight *weights, int64_t count, const Settings *settings, int decoupled, int fused,
                    int threads) {
  int64_t total = 0;
  for (int64_t k = 0; k < count; k++) total += weights[k].elements;
  (void)threads;
#ifdef _OPENMP
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && total > ALONE)
#else
  threads = 1;
#endif
  for (int t = 0; t < threads; t++)
    for (int64_t k = 0; k < count; k++) {
      int64_t lines = (weights[k].elements + LINE - 1) / LINE;
      int64_t start = lines * t / threads * LINE, stop = lines * (t + 1) / threads * LINE;
      slice(weights + k, settings, start, stop < weights[k].elements ? stop : weights[k].elements, decoupled, fused);
    }
}
