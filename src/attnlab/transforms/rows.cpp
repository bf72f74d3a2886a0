// Rows of scores in C++, on the CPU: vectors, rows in memory, and the walk over them.
//
// native.py joins this file and the kernels, entmax.cpp and fusedmax.cpp, to one and has it built. Each row is solved
// to the end while it lies in the first-level cache: it takes the steps it needs, not a number that suits all rows.
// A row of scores is read as w = scale * (z - max z), -inf at masked keys.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#ifdef __AVX512DQ__
#include <immintrin.h>
#endif

namespace {

// As wide as the machine's registers: wider ones the compiler takes apart, badly.
#if defined(__AVX512DQ__)
#define VECTOR_BYTES 64
#elif defined(__AVX2__)
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
constexpr int64_t LANES = VECTOR_BYTES / 4;
constexpr float INF = std::numeric_limits<float>::infinity();

using Floats = float __attribute__((vector_size(VECTOR_BYTES), may_alias));
using Ints = int32_t __attribute__((vector_size(VECTOR_BYTES), may_alias));
using Words = uint32_t __attribute__((vector_size(VECTOR_BYTES), may_alias));
using Bytes = uint8_t __attribute__((vector_size(VECTOR_BYTES / 4), may_alias));
using Halves = uint16_t __attribute__((vector_size(VECTOR_BYTES / 2), may_alias));

inline Floats all(float x) { return x - Floats{}; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }

using Floats4 = float __attribute__((vector_size(16), may_alias));
using Floats8 = float __attribute__((vector_size(32), may_alias));
using Floats16 = float __attribute__((vector_size(64), may_alias));

// One number of all lanes: the halves of a vector joined, until a number is left.
template <class Join>
inline float across(const Floats4& v, Join join) {
  return join(join(v[0], v[2]), join(v[1], v[3]));
}
template <class Join>
inline float across(const Floats8& v, Join join) {
  Floats4 halves[2];
  std::memcpy(halves, &v, sizeof v);
  return across(join(halves[0], halves[1]), join);
}
template <class Join>
inline float across(const Floats16& v, Join join) {
  Floats8 halves[2];
  std::memcpy(halves, &v, sizeof v);
  return across(join(halves[0], halves[1]), join);
}
inline float sum(Floats v) {
  return across(v, [](auto a, auto b) { return a + b; });
}
inline float largest(Floats v) {
  return across(v, [](auto a, auto b) { return a > b ? a : b; });
}

#ifdef __AVX512DQ__
inline uint32_t bits_of(Ints mask) { return _mm512_movepi32_mask((__m512i)mask); }
inline void squeeze(float* to, Floats v, uint32_t bits) {
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(bits), (__m512)v));
}
#else
inline uint32_t bits_of(Ints mask) {
  uint32_t bits = 0;
  for (int64_t lane = 0; lane < LANES; ++lane) bits |= static_cast<uint32_t>(mask[lane] & 1) << lane;
  return bits;
}
// The lanes of v whose bit is set, one behind the other; what is left of the places holds anything.
inline void squeeze(float* to, Floats v, uint32_t bits) {
  for (int64_t lane = 0; lane < LANES; ++lane) {
    *to = v[lane];
    to += bits >> lane & 1;
  }
}
#endif
inline bool any(Ints mask) { return bits_of(mask) != 0; }

inline Floats root_of(Floats v) {
  for (int64_t lane = 0; lane < LANES; ++lane) v[lane] = std::sqrt(v[lane]);
  return v;
}

// 2^x for x in [-126, 127], held there: x = n + r, and a polynomial in r (Cephes, exp2f).
inline Floats exp2_of(Floats x) {
  x = smaller(larger(x, all(-126.0f)), all(127.0f));
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: added, it rounds to a whole number, in the low bits
  const Floats shifted = x + magic;
  const Floats r = x - (shifted - magic);
  Floats y = r * 1.535336188319500e-4f + 1.339887440266574e-3f;
  y = y * r + 9.618437357674640e-3f;
  y = y * r + 5.550332471162809e-2f;
  y = y * r + 2.402264791363012e-1f;
  y = y * r + 6.931472028550421e-1f;
  y = y * r + 1.0f;
  return y * (Floats)(((Ints)shifted - (Ints)magic + 127) << 23);
}
constexpr float LOG2_E = 1.44269504f, LOG_2 = 0.693147181f;
inline Floats exp_of(Floats x) { return exp2_of(x * LOG2_E); }

// x = 2^n (1 + m) with 1 + m in [sqrt 1/2, sqrt 2), for normal x > 0: n, and log(1 + m) by a polynomial (Cephes, logf).
struct Logarithm {
  Floats n, rest;
};
inline Logarithm log_parts(Floats x) {
  const Ints bits = (Ints)x;
  const Ints exponent = (bits - 0x3f3504f3) >> 23;
  const Floats m = (Floats)(bits - (exponent << 23)) - 1.0f;
  Floats y = m * 7.0376836292e-2f - 1.1514610310e-1f;
  y = y * m + 1.1676998740e-1f;
  y = y * m - 1.2420140846e-1f;
  y = y * m + 1.4249322787e-1f;
  y = y * m - 1.6668057665e-1f;
  y = y * m + 2.0000714765e-1f;
  y = y * m - 2.4999993993e-1f;
  y = y * m + 3.3333331174e-1f;
  const Floats square = m * m;
  return {__builtin_convertvector(exponent, Floats), m + square * (y * m - 0.5f)};
}
inline Floats log_of(Floats x) {
  const Logarithm log = log_parts(x);
  return log.n * LOG_2 + log.rest;
}

// ---- Rows in memory: float32, or bfloat16 as uint16_t ----

inline Floats load(const float* from) {
  Floats v;
  std::memcpy(&v, from, sizeof v);
  return v;
}
inline Floats load(const uint16_t* from) {
  Halves v;
  std::memcpy(&v, from, sizeof v);
  return (Floats)(__builtin_convertvector(v, Words) << 16);
}
inline void store(float* to, Floats v) { std::memcpy(to, &v, sizeof v); }
inline void store(uint16_t* to, Floats v) {
  const Words bits = (Words)v;
  // Rounded to the nearest, ties to even; NaN stays NaN.
  const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const Halves halves = __builtin_convertvector(v == v ? rounded : Words{} + 0x7fc0, Halves);
  std::memcpy(to, &halves, sizeof halves);
}
inline float load_one(const float* from) { return *from; }
inline float load_one(const uint16_t* from) {
  const uint32_t bits = static_cast<uint32_t>(*from) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline void store_one(float* to, float x) { *to = x; }
inline void store_one(uint16_t* to, float x) {
  uint16_t rounded[LANES];
  store(rounded, all(x));
  *to = rounded[0];
}

// Block i of a row of `keys`; `rest` behind its end.
template <class S>
Floats load_block(const S* from, int64_t i, int64_t keys, float rest = 0) {
  if ((i + 1) * LANES <= keys) return load(from + i * LANES);
  Floats v = all(rest);
  for (int64_t at = i * LANES; at < keys; ++at) v[at - i * LANES] = load_one(from + at);
  return v;
}
template <class S>
void store_block(S* to, int64_t i, int64_t keys, Floats v) {
  if ((i + 1) * LANES <= keys) return store(to + i * LANES, v);
  for (int64_t at = i * LANES; at < keys; ++at) store_one(to + at, v[at - i * LANES]);
}

// What broadcasts over the rows: its first element, and how many elements on the next one lies along each dimension.
struct Given {
  const int64_t* strides;
  int64_t at = 0;
};

// Walks the rows of scores (..., K) in order and keeps the place of what is given with them.
template <int N>
struct Walk {
  const int64_t* sizes;
  int64_t dims;
  int64_t index[8] = {};
  Given given[N];

  void start(int64_t row) {
    for (int64_t d = dims - 1; d >= 0; --d) {
      index[d] = row % sizes[d];
      row /= sizes[d];
      for (auto& one : given) one.at += index[d] * one.strides[d];
    }
  }
  void next() {
    for (int64_t d = dims - 1; d >= 0; --d) {
      for (auto& one : given) one.at += one.strides[d];
      if (++index[d] < sizes[d]) return;
      for (auto& one : given) one.at -= sizes[d] * one.strides[d];
      index[d] = 0;
    }
  }
};

// Which keys of block i are kept; `step` lies between two keys of the mask.
inline Ints kept_block(const bool* keep, int64_t step, int64_t i, int64_t keys) {
  Ints kept{};
  if (step == 1 && (i + 1) * LANES <= keys) {
    Bytes bytes;
    std::memcpy(&bytes, keep + i * LANES, sizeof bytes);
    kept = __builtin_convertvector(bytes, Ints);
  } else {
    for (int64_t at = i * LANES; at < std::min(keys, (i + 1) * LANES); ++at) kept[at - i * LANES] = keep[at * step];
  }
  return kept != 0;
}

// A row read into w, `blocks` vectors long and filled up with -inf: scale * (z - max z). Its maximum, or NaN.
template <class S>
float read_row(const S* scores, const bool* keep, int64_t step, int64_t keys, float scale, Floats* w, int64_t blocks) {
  Floats tops = all(-INF);
  Ints odd{};
  for (int64_t i = 0; i < blocks; ++i) {
    Floats v = load_block(scores, i, keys, -INF);
    if (keep != nullptr) v = kept_block(keep, step, i, keys) ? v : all(-INF);
    tops = larger(tops, v);
    odd |= v != v;
    w[i] = v;
  }
  const float top = largest(tops);
  if (top == INF || any(odd)) return std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < blocks; ++i) w[i] = (w[i] - top) * scale;
  return top;
}

template <class S>
void fill_row(S* out, int64_t keys, float x) {
  for (int64_t i = 0; i < keys; ++i) store_one(out + i, x);
}

// work(first, end) for as many shares of the rows of scores (..., K) as there are threads.
template <class Work>
void in_parts(const int64_t* sizes, int64_t dims, int threads, Work work) {
  int64_t rows = 1;
  for (int64_t d = 0; d < dims; ++d) rows *= sizes[d];
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) work(rows * part / threads, rows * (part + 1) / threads);
}

}  // namespace
