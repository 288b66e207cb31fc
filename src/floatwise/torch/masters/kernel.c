/* SPDX-License-Identifier: Apache-2.0
 * A float32 as a bfloat16 and 16 more bits, and back: see split.py for the arithmetic.
 * `hi` holds the bits of the bfloat16 values, `lo` the signed remainders.
 */
#include <stdint.h>

/* Below this many elements starting threads takes longer than the work: at::internal::GRAIN_SIZE of PyTorch 2.13. */
#define ALONE 32768

/* Elements that a thread takes at a time: half of the first-level cache. The loops over them are functions of their
 * own, since in a parallel region compilers forget `restrict` and vectorize none of it (gcc 12: five times slower). */
#define BLOCK 4096

#ifdef _OPENMP
#define PARALLEL _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1 && n > ALONE)")
#else
#define PARALLEL
#endif
#define FOR_EACH_BLOCK PARALLEL for (int64_t at = 0; at < n; at += BLOCK)
#define ITS_SIZE (n - at < BLOCK ? n - at : BLOCK)

static void join(uint32_t *restrict out, const uint16_t *restrict hi, const int16_t *restrict lo, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    int32_t low = lo[i];
    low = (hi[i] & 0x7fff) == 0 && low < 0 ? 0 : low;
    out[i] = ((uint32_t)hi[i] << 16) + (uint32_t)low;
  }
}

static void split(const uint32_t *restrict value, uint16_t *restrict hi, int16_t *restrict lo, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits = value[i];
    bits = (bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc00000u : bits;
    lo[i] = (int16_t)(bits & 0xffffu);
    hi[i] = (uint16_t)((bits + 0x8000u) >> 16);
  }
}

static void widen(uint32_t *restrict out, const uint16_t *restrict bfloat16, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = (uint32_t)bfloat16[i] << 16;
}

void floatwise_join(uint32_t *out, const uint16_t *hi, const int16_t *lo, int64_t n, int threads) {
  (void)threads;
  FOR_EACH_BLOCK join(out + at, hi + at, lo + at, ITS_SIZE);
}

void floatwise_split(const uint32_t *value, uint16_t *hi, int16_t *lo, int64_t n, int threads) {
  (void)threads;
  FOR_EACH_BLOCK split(value + at, hi + at, lo + at, ITS_SIZE);
}

void floatwise_widen(uint32_t *out, const uint16_t *bfloat16, int64_t n, int threads) {
  (void)threads;
  FOR_EACH_BLOCK widen(out + at, bfloat16 + at, ITS_SIZE);
}
