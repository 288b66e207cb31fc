/* SPDX-License-Identifier: Apache-2.0
 * A float32 as a bfloat16 and 16 more bits, and back: see split.py for the arithmetic.
 * `hi` holds the bits of the bfloat16 values, `lo` the signed remainders.
 */
#include <stdint.h>

/* Below this many elements starting threads takes longer than the work: at::internal::GRAIN_SIZE of PyTorch 2.13. */
#define ALONE 32768

#ifdef _OPENMP
#define FOR_EACH _Pragma("omp parallel for simd schedule(static) num_threads(threads) if (threads > 1 && n > ALONE)")
#else
#define FOR_EACH
#endif

void floatwise_join(uint32_t *restrict out, const uint16_t *restrict hi, const int16_t *restrict lo, int64_t n,
                    int threads) {
  (void)threads;
  FOR_EACH
  for (int64_t i = 0; i < n; i++) {
    int32_t low = lo[i];
    if ((hi[i] & 0x7fff) == 0 && low < 0) low = 0;
    out[i] = ((uint32_t)hi[i] << 16) + (uint32_t)low;
  }
}

void floatwise_split(const uint32_t *restrict value, uint16_t *restrict hi, int16_t *restrict lo, int64_t n,
                     int threads) {
  (void)threads;
  FOR_EACH
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = value[i];
    if ((bits & 0x7fffffffu) > 0x7f800000u) bits = 0x7fc00000u;
    lo[i] = (int16_t)(bits & 0xffffu);
    hi[i] = (uint16_t)((bits + 0x8000u) >> 16);
  }
}

void floatwise_widen(uint32_t *restrict out, const uint16_t *restrict bfloat16, int64_t n, int threads) {
  (void)threads;
  FOR_EACH
  for (int64_t i = 0; i < n; i++) out[i] = (uint32_t)bfloat16[i] << 16;
}
