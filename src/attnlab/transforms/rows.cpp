// Rows of scores on the CPU: alpha-entmax, sparsemax included, and the gradient of entmax. Built and called by native.py.
//
// Each row is solved to the end while it lies in the first-level cache: it takes the steps it needs, not a number of
// steps that suits all rows, and what does not come out in float32 is solved again in float64. Formulas, shapes and
// the limits on alpha: rows.py and entmax.py. w is a row of scale * (z - max z), -inf at masked keys.
//
// Two ways to use vectors. sparsemax and entmax15, a few operations a key, put 16 keys of one row into a vector
// (`Floats`). Any other alpha takes a logarithm and an exponential a key: there the keys that can have a share are
// picked out first, and a vector holds one key of each of 16 rows, so that no sum runs across a vector.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#ifdef __AVX512DQ__
#include <immintrin.h>
#endif

namespace {

constexpr int64_t LANES = 16;
constexpr int MOST_STEPS = 60;
constexpr int BOUND_STEPS = 2;
constexpr int START_STEPS = 3;
constexpr int ENTMAX_STEPS = 12;
// Float32 sums of a row carry about this much rounding.
constexpr float SETTLED = 2e-6f;
constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float TINY = 1e-30f;
constexpr float NEAR = 0.1f;
constexpr float STEEP = 0.55f;

using Floats = float __attribute__((vector_size(64), may_alias));
using Floats8 = float __attribute__((vector_size(32), may_alias));
using Floats4 = float __attribute__((vector_size(16), may_alias));
using Ints = int32_t __attribute__((vector_size(64), may_alias));
using Words = uint32_t __attribute__((vector_size(64), may_alias));
using Halves = uint16_t __attribute__((vector_size(32), may_alias));

inline Floats all(float x) { return x - Floats{}; }
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline Floats smaller(Floats a, Floats b) { return a < b ? a : b; }

inline float sum(Floats v) {
  const Floats8 a = __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) +
                    __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  Floats4 b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  b += __builtin_shufflevector(b, b, 2, 3, 0, 1);
  return b[0] + b[1];
}

inline float largest(Floats v) {
  v = larger(v, __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7));
  v = larger(v, __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11));
  v = larger(v, __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13));
  return std::max(v[0], v[1]);
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
// The lanes of v whose bit is set, one behind the other; what is left of the 16 places holds anything.
inline void squeeze(float* to, Floats v, uint32_t bits) {
  for (int64_t lane = 0; lane < LANES; ++lane) {
    *to = v[lane];
    to += bits >> lane & 1;
  }
}
#endif
inline bool any(Ints mask) { return bits_of(mask) != 0; }

// exp for x in [-87, 88], held there: x = n log 2 + r, and a polynomial in r (Cephes, expf).
inline Floats exp_of(Floats x) {
  x = smaller(larger(x, all(-87.0f)), all(88.0f));
  const Floats magic = all(12582912.0f);  // 1.5 * 2^23: added, it rounds to a whole number, in the low bits
  const Floats shifted = x * 1.44269504f + magic;
  const Floats n = shifted - magic;
  const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  return y * (Floats)(((Ints)shifted - (Ints)magic + 127) << 23);
}

// log for normal x > 0: x = m 2^n with m in [sqrt 1/2, sqrt 2), and a polynomial in m - 1 (Cephes, logf).
inline Floats log_of(Floats x) {
  const Ints bits = (Ints)x;
  const Ints exponent = (bits - 0x3f3504f3) >> 23;
  const Floats n = __builtin_convertvector(exponent, Floats);
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
  y = y * m * square - n * 2.12194440e-4f - 0.5f * square;
  return m + y + n * 0.693359375f;
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

// A row read into w, `blocks` vectors long and filled up with -inf: scale * (z - max z). Its maximum, or NaN.
template <class S>
float read_row(const S* scores, const bool* keep, int64_t step, int64_t keys, float scale, Floats* w, int64_t blocks) {
  float* flat = reinterpret_cast<float*>(w);
  const int64_t whole = keys / LANES;
  w[blocks - 1] = all(-INF);
  for (int64_t i = 0; i < whole; ++i) w[i] = load(scores + i * LANES);
  for (int64_t i = whole * LANES; i < keys; ++i) flat[i] = load_one(scores + i);
  if (keep != nullptr) {
    if (step == 1)
      for (int64_t i = 0; i < keys; ++i) flat[i] = keep[i] ? flat[i] : -INF;
    else
      for (int64_t i = 0; i < keys; ++i) flat[i] = keep[i * step] ? flat[i] : -INF;
  }
  Floats tops = w[0];
  Ints odd{};
  for (int64_t i = 0; i < blocks; ++i) {
    tops = larger(tops, w[i]);
    odd |= w[i] != w[i];
  }
  const float top = largest(tops);
  if (top == INF || any(odd)) return std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < blocks; ++i) w[i] = (w[i] - top) * scale;
  return top;
}

template <class S>
void write_row(const Floats* p, S* out, int64_t keys) {
  const int64_t whole = keys / LANES;
  for (int64_t i = 0; i < whole; ++i) store(out + i * LANES, p[i]);
  for (int64_t i = whole * LANES; i < keys; ++i) store_one(out + i, reinterpret_cast<const float*>(p)[i]);
}

template <class S>
void fill_row(S* out, int64_t keys, float x) {
  for (int64_t i = 0; i < keys; ++i) store_one(out + i, x);
}

// ---- One row a time: p[i], and whether the sum is one ----

bool sparsemax_row(const Floats* __restrict w, Floats* __restrict p, int64_t blocks) {
  float tau = -1, before = 0;
  for (int step = 0; step < MOST_STEPS; ++step) {
    Floats mass{}, size{};
    for (int64_t i = 0; i < blocks; ++i) {
      mass += w[i] > tau ? w[i] - tau : Floats{};
      size += w[i] > tau ? all(1) : Floats{};
    }
    const float support = sum(size);
    tau += (sum(mass) - 1) / support;
    if (support == before) break;
    before = support;
  }
  Floats total{};
  for (int64_t i = 0; i < blocks; ++i) {
    p[i] = larger(w[i] - tau, Floats{});
    total += p[i];
  }
  return std::abs(sum(total) - 1) <= SETTLED;
}

bool entmax15_row(const Floats* __restrict w, Floats* __restrict p, int64_t blocks) {
  float tau = -1;
  for (int step = 0; step < MOST_STEPS; ++step) {
    Floats square{}, total{};
    for (int64_t i = 0; i < blocks; ++i) {
      const Floats excess = larger(0.5f * w[i] - tau, Floats{});
      total += excess;
      square += excess * excess;
    }
    const float mass = sum(square), norm = std::sqrt(mass);
    tau += (norm - 1) * norm / sum(total);
    if (std::abs(mass - 1) < 1e-4f) break;  // one more step squares that
  }
  Floats total{};
  for (int64_t i = 0; i < blocks; ++i) {
    const Floats excess = larger(0.5f * w[i] - tau, Floats{});
    p[i] = excess * excess;
    total += p[i];
  }
  return std::abs(sum(total) - 1) <= SETTLED;
}

// In float64: Newton steps on S^e - 1 inside a bracket, and halving where they do not get on.
void exact_row(const float* w, float* p, int64_t keys, double alpha) {
  const double eps = std::abs(alpha - 1) < 1e-12 ? 1e-12 : alpha - 1;
  std::vector<double> near;
  std::vector<int64_t> at;
  for (int64_t i = 0; i < keys; ++i) {
    p[i] = 0;
    if (w[i] != -INF && 1 + eps * w[i] > 0) near.push_back(w[i]), at.push_back(i);
  }
  std::vector<double> q(near.size());
  double low = 0, high = -std::expm1(-eps * std::log(near.size() + 1.0)) / eps, theta = 0, width = high;
  for (int step = 0; step < 200; ++step) {
    double mass = 0, slope = 0;
    for (size_t i = 0; i < near.size(); ++i) {
      const double x = eps * (near[i] - theta);
      q[i] = x > -1 ? std::exp(std::log1p(x) / eps) : 0;
      mass += q[i];
      if (x > -1) slope += q[i] / (1 + x);
    }
    if (std::abs(mass - 1) < 1e-14) break;
    (mass > 1 ? low : high) = theta;
    if (high - low <= 4e-16 * high) break;
    const double rise = std::expm1(eps * std::log(mass)) / eps * std::pow(mass, 1 - eps);
    double next = theta + rise / slope;
    // Every third step the bracket must have halved.
    if (!(next > low && next < high) || (step % 3 == 2 && high - low > width / 2)) next = (low + high) / 2;
    if (step % 3 == 2) width = high - low;
    theta = next;
  }
  for (size_t i = 0; i < near.size(); ++i) p[at[i]] = static_cast<float>(q[i]);
}

// ---- 16 rows at a time ----

// The keys picked out of each of 16 rows: the j-th of row `lane` is value[j][lane], and its place in the row at[j][lane].
struct Picked {
  std::vector<Floats> value, second, result;
  std::vector<int32_t> at;
  int64_t count[LANES] = {};
  std::vector<float> row;
  explicit Picked(int64_t room)
      : value(room), second(room), result(room), at(room * LANES), row(3 * (room + LANES)) {}

  // The keys i of a row with keep(i, v), where v and also are what it holds there, block for block.
  template <class Value, class Also, class Keep>
  void pick(int64_t lane, int64_t blocks, bool both, Value value_of, Also also, Keep keep) {
    const int64_t room = static_cast<int64_t>(row.size()) / 3;
    float *first = row.data(), *then = first + room, *place = then + room;
    Ints index{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    int64_t n = 0;
    for (int64_t i = 0; i < blocks; ++i, index += static_cast<int32_t>(LANES)) {
      const Floats v = value_of(i);
      const uint32_t bits = bits_of(keep(v));
      squeeze(first + n, v, bits);
      if (both) squeeze(then + n, also(i), bits);
      squeeze(place + n, (Floats)index, bits);
      n += __builtin_popcount(bits);
    }
    float* to_value = reinterpret_cast<float*>(value.data()) + lane;
    float* to_second = reinterpret_cast<float*>(second.data()) + lane;
    for (int64_t j = 0; j < n; ++j) {
      to_value[j * LANES] = first[j];
      if (both) to_second[j * LANES] = then[j];
      std::memcpy(&at[j * LANES + lane], place + j, sizeof(int32_t));
    }
    count[lane] = n;
  }

  int64_t longest() const { return *std::max_element(count, count + LANES); }

  template <class S>
  void write(int64_t lane, S* out, int64_t keys) const {
    const float* flat = reinterpret_cast<const float*>(result.data()) + lane;
    const int32_t* place = at.data() + lane;
    std::memset(out, 0, keys * sizeof(S));
    for (int64_t j = 0; j < count[lane]; ++j) store_one(out + place[j * LANES], flat[j * LANES]);
  }
};

struct Entmax {
  Picked picked;
  Floats eps{};
  explicit Entmax(int64_t keys) : picked(keys + 1) {}

  // The keys of a row within 1 / e of what theta is at least: below, p is zero.
  void pick(int64_t lane, const Floats* w, int64_t blocks, double alpha) {
    const double excess = std::abs(alpha - 1) < 1e-12 ? 1e-12 : alpha - 1;
    const float least = excess < 1 ? least_theta(w, blocks, excess < 0.5) : 0;
    const float cut = excess > 0 ? static_cast<float>(std::max(least - 1 / excess, -3e38)) : -3e38f;
    picked.pick(
        lane, blocks, false, [&](int64_t i) { return w[i]; }, [](int64_t) { return Floats{}; },
        [&](Floats v) { return v > cut; });
    eps[lane] = static_cast<float>(excess);
  }

  // theta falls as alpha rises, so that of alpha = 1.5 or 2 is a lower bound; Newton steps from the left are below it.
  static float least_theta(const Floats* w, int64_t blocks, bool at_15) {
    float tau = -1;
    for (int step = 0; step < BOUND_STEPS; ++step) {
      Floats square{}, total{}, size{};
      if (at_15) {
        for (int64_t i = 0; i < blocks; ++i) {
          const Floats excess = larger(0.5f * w[i] - tau, Floats{});
          total += excess;
          square += excess * excess;
        }
        const float norm = std::sqrt(sum(square));
        tau += (norm - 1) * norm / sum(total);
      } else {
        for (int64_t i = 0; i < blocks; ++i) {
          total += w[i] > tau ? w[i] - tau : Floats{};
          size += w[i] > tau ? all(1) : Floats{};
        }
        tau += (sum(total) - 1) / sum(size);
      }
    }
    return (at_15 ? 2 : 1) * (1 + tau) - 1e-4f;
  }

  // Close to alpha = 1 the base 1 + e (w - theta) is near one and what counts is its distance from it, -e theta + e w;
  // elsewhere it may be near zero, in a flat row, and 1 - e theta counts. Whichever it is, is the unknown: `origin`.
  Ints near_softmax() const { return (eps < 0.1f); }

  // Where origin would be if all keys were equal, as many as the row counts for: found at alpha = 1.5 and 2, where steps
  // are cheap, and carried on to alpha along a line in the logarithm of that number.
  Floats start(int64_t longest) const {
    Floats root = all(-1), tau = all(-1);
    const Floats* w = picked.value.data();
    for (int step = 0; step < START_STEPS; ++step) {
      Floats square{}, excesses{}, mass{}, size{};
      for (int64_t j = 0; j < longest; ++j) {
        const Floats excess = larger(0.5f * w[j] - root, Floats{});
        excesses += excess;
        square += excess * excess;
        mass += larger(w[j] - tau, Floats{});
        size += w[j] > tau ? all(1) : Floats{};
      }
      Floats norm = square;
      for (int64_t lane = 0; lane < LANES; ++lane) norm[lane] = std::sqrt(square[lane]);
      root += (norm - 1) * norm / larger(excesses, all(TINY));
      tau += (mass - 1) / larger(size, all(1));
    }
    // 1 - theta / 2 = -root at alpha = 1.5, 1 - theta = -tau at alpha = 2
    const Floats keys15 = -2 * log_of(larger(-root, all(1e-6f))), keys2 = -log_of(larger(-tau, all(1e-6f)));
    const Floats exponent = eps * larger(keys2 + (1 - eps) * 2 * (keys15 - keys2), Floats{});
    // exp(-x) - 1 would lose its digits for small x
    const Floats series = -exponent * (1 - 0.5f * exponent), base = exp_of(-exponent);
    return near_softmax() ? (exponent < 1e-3f ? series : base - 1) : base;
  }

  // Solves all rows; which of them are off by more than rounding.
  Ints solve() {
    const int64_t longest = picked.longest();
    Floats* w = picked.value.data();
    Floats* p = picked.result.data();
    float* flat = reinterpret_cast<float*>(w);
    Ints empty{};
    for (int64_t lane = 0; lane < LANES; ++lane) {
      for (int64_t j = picked.count[lane]; j < longest; ++j) flat[j * LANES + lane] = -INF;
      if (picked.count[lane] == 0) empty[lane] = -1, eps[lane] = 1;
    }
    const Floats inverse = 1 / eps, one = near_softmax() ? all(1) : Floats{};
    // theta rises where origin falls, and a falling bracket holds the other way round where e < 0
    Floats origin = start(longest), theta_low = all(-INF), theta_high = all(INF), off{};
    for (int step = 0; step < ENTMAX_STEPS; ++step) {
      Floats mass{}, slope{}, bend{};
      for (int64_t j = 0; j < longest; ++j) {
        const Floats x = origin + eps * w[j];
        const Floats base = larger(x + one, all(TINY));
        const Floats reciprocal = 1 / base;
        // the logarithm of x + one, with what that sum lost of x
        const Floats exponent = (log_of(base) + (x - (base - one)) * reciprocal) * inverse;
        p[j] = base > TINY ? exp_of(exponent) : Floats{};
        const Floats fall = p[j] * reciprocal;
        mass += p[j];
        slope += fall;
        bend += fall * reciprocal;
      }
      off = empty ? Floats{} : mass - 1;
      if (!any((off > 1e-6f) | (off < -1e-6f))) break;
      // Near the root a step of third order; at first, S^(1-e) (S^e - 1) / e, which cannot overshoot.
      const Floats log_mass = log_of(larger(mass, all(TINY)));
      const Floats curve = eps < STEEP ? bend / (slope * slope) : all(1);
      const Floats near = off * (1 + 0.5f * (1 - eps) * off * curve);
      const Floats far = (exp_of(log_mass) - exp_of((1 - eps) * log_mass)) * inverse;
      const Floats rise = (off < NEAR) & (off > -NEAR) ? near : far;
      const Floats theta = -origin * inverse;
      theta_low = off > 0 ? theta : theta_low;
      theta_high = off < 0 ? theta : theta_high;
      const Floats move = rise / larger(slope, all(TINY)), next = theta + move;
      const Floats middle = 0.5f * (larger(theta_low, theta - 1) + smaller(theta_high, theta + 1));
      const Floats moved = origin - eps * move;
      origin = off == 0 ? origin : (next >= theta_low) & (next <= theta_high) ? moved : -eps * middle;
    }
    return (off > SETTLED) | (off < -SETTLED) | (off != off);
  }
};

// The gradient in the scores, u (g - sum(u g) / sum u) with u = p^(2 - alpha), and g . dp/dalpha: see _backward.
struct EntmaxGradient {
  Picked picked;
  Floats eps{};
  explicit EntmaxGradient(int64_t keys) : picked(keys + 1) {}

  template <class S>
  void pick(int64_t lane, const S* p, const S* grad, int64_t keys, double alpha) {
    const double excess = std::abs(alpha - 1) < 1e-12 ? 1e-12 : alpha - 1;
    const int64_t whole = keys / LANES, blocks = (keys + LANES - 1) / LANES;
    auto block = [&](const S* from, int64_t i) {
      if (i < whole) return load(from + i * LANES);
      Floats v{};
      for (int64_t at = whole * LANES; at < keys; ++at) v[at - whole * LANES] = load_one(from + at);
      return v;
    };
    picked.pick(
        lane, blocks, true, [&](int64_t i) { return block(p, i); }, [&](int64_t i) { return block(grad, i); },
        [](Floats v) { return ~(v <= 0); });  // NaN stays
    eps[lane] = static_cast<float>(excess);
  }

  // The gradients of the scores into `result`; those of alpha are returned.
  Floats solve(bool learned) {
    const int64_t longest = picked.longest();
    Floats* p = picked.value.data();
    Floats* grad = picked.second.data();
    Floats* weight = picked.result.data();
    for (int64_t lane = 0; lane < LANES; ++lane) {
      for (int64_t j = picked.count[lane]; j < longest; ++j) {
        reinterpret_cast<float*>(p)[j * LANES + lane] = 0;
        reinterpret_cast<float*>(grad)[j * LANES + lane] = 0;
      }
      if (picked.count[lane] == 0) eps[lane] = 1;
    }
    const Floats by_square = 1 / (eps * eps);
    Floats total{}, pulled{}, rises{}, risen{};
    for (int64_t j = 0; j < longest; ++j) {
      const Floats log_p = log_of(larger(p[j], all(1.2e-38f)));
      const Floats t = eps * log_p;
      const Floats inverse = exp_of(-t);
      weight[j] = p[j] * inverse;
      total += weight[j];
      pulled += weight[j] * grad[j];
      if (learned) {
        const Floats series = -0.5f * log_p * log_p * (1 - t / 3 * (1 - t / 4 * (1 - t / 5 * (1 - t / 6))));
        const Floats h = (t < 0.1f) & (t > -0.1f) ? series : (1 - inverse - t) * by_square;
        rises += p[j] * h;
        risen += p[j] * h * grad[j];
      }
    }
    const Floats share = 1 / (total > 0 ? total : all(1));
    const Floats mean = pulled * share;
    for (int64_t j = 0; j < longest; ++j) weight[j] *= grad[j] - mean;
    return risen - mean * rises;
  }
};

template <class Work>
void in_parts(int64_t rows, int threads, Work work) {
#pragma omp parallel for num_threads(threads) schedule(static, 1)
  for (int part = 0; part < threads; ++part) work(rows * part / threads, rows * (part + 1) / threads);
}

template <class S>
void entmax(const S* scores, S* out, const int64_t* sizes, int64_t dims, const bool* keep, const int64_t* keep_strides,
            const float* scale, const int64_t* scale_strides, const double* alpha, const int64_t* alpha_strides,
            int threads) {
  int64_t rows = 1;
  for (int64_t d = 0; d < dims; ++d) rows *= sizes[d];
  const int64_t keys = sizes[dims], blocks = (keys + LANES - 1) / LANES, step = keep_strides[dims];
  in_parts(rows, threads, [&](int64_t first, int64_t end) {
    // one row of w for each lane: those that come out wrong are solved again
    std::vector<Floats> kept_rows(blocks * LANES), p(blocks);
    Entmax group(blocks * LANES);
    Walk<3> walk{sizes, dims, {}, {{keep_strides}, {scale_strides}, {alpha_strides}}};
    walk.start(first);
    double alphas[LANES];
    int64_t lanes = 0, owner[LANES];
    auto solve = [&] {
      for (int64_t lane = lanes; lane < LANES; ++lane) group.picked.count[lane] = 0;
      const Ints off = group.solve();
      for (int64_t lane = 0; lane < lanes; ++lane) {
        S* to = out + owner[lane] * keys;
        if (off[lane]) {
          exact_row(reinterpret_cast<float*>(&kept_rows[lane * blocks]), reinterpret_cast<float*>(p.data()), keys,
                    alphas[lane]);
          write_row(p.data(), to, keys);
        } else {
          group.picked.write(lane, to, keys);
        }
      }
      lanes = 0;
    };
    for (int64_t row = first; row < end; ++row, walk.next()) {
      Floats* w = &kept_rows[lanes * blocks];
      const bool* mask = keep == nullptr ? nullptr : keep + walk.given[0].at;
      const double a = alpha[walk.given[2].at];
      const float top = read_row(scores + row * keys, mask, step, keys, scale[walk.given[1].at], w, blocks);
      if (top == -INF || top != top) {
        fill_row(out + row * keys, keys, top == -INF ? 0.0f : top);
      } else if (a == 2 || a == 1.5) {
        if (!(a == 2 ? sparsemax_row(w, p.data(), blocks) : entmax15_row(w, p.data(), blocks)))
          exact_row(reinterpret_cast<float*>(w), reinterpret_cast<float*>(p.data()), keys, a);
        write_row(p.data(), out + row * keys, keys);
      } else {
        group.pick(lanes, w, blocks, a);
        alphas[lanes] = a;
        owner[lanes++] = row;
        if (lanes == LANES) solve();
      }
    }
    if (lanes > 0) solve();
  });
}

template <class S>
void entmax_gradient(const S* p, const S* grad, S* out, float* pull, const int64_t* sizes, int64_t dims,
                     const double* alpha, const int64_t* alpha_strides, int threads) {
  int64_t rows = 1;
  for (int64_t d = 0; d < dims; ++d) rows *= sizes[d];
  const int64_t keys = sizes[dims];
  in_parts(rows, threads, [&](int64_t first, int64_t end) {
    EntmaxGradient group(keys);
    Walk<1> walk{sizes, dims, {}, {{alpha_strides}}};
    walk.start(first);
    for (int64_t row = first; row < end; row += LANES) {
      const int64_t lanes = std::min(LANES, end - row);
      for (int64_t lane = 0; lane < lanes; ++lane, walk.next())
        group.pick(lane, p + (row + lane) * keys, grad + (row + lane) * keys, keys, alpha[walk.given[0].at]);
      for (int64_t lane = lanes; lane < LANES; ++lane) group.picked.count[lane] = 0;
      const Floats pulls = group.solve(pull != nullptr);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        group.picked.write(lane, out + (row + lane) * keys, keys);
        if (pull != nullptr) pull[row + lane] = pulls[lane];
      }
    }
  });
}

}  // namespace

// sizes: `dims` leading ones, then the keys; strides likewise, 0 along what is broadcast.
extern "C" void attnlab_entmax(bool halves, const void* scores, void* out, const int64_t* sizes, int64_t dims,
                               const bool* keep, const int64_t* keep_strides, const float* scale,
                               const int64_t* scale_strides, const double* alpha, const int64_t* alpha_strides,
                               int threads) {
  if (halves)
    entmax(static_cast<const uint16_t*>(scores), static_cast<uint16_t*>(out), sizes, dims, keep, keep_strides, scale,
           scale_strides, alpha, alpha_strides, threads);
  else
    entmax(static_cast<const float*>(scores), static_cast<float*>(out), sizes, dims, keep, keep_strides, scale,
           scale_strides, alpha, alpha_strides, threads);
}

extern "C" void attnlab_entmax_gradient(bool halves, const void* p, const void* grad, void* out, float* pull,
                                        const int64_t* sizes, int64_t dims, const double* alpha,
                                        const int64_t* alpha_strides, int threads) {
  if (halves)
    entmax_gradient(static_cast<const uint16_t*>(p), static_cast<const uint16_t*>(grad), static_cast<uint16_t*>(out),
                    pull, sizes, dims, alpha, alpha_strides, threads);
  else
    entmax_gradient(static_cast<const float*>(p), static_cast<const float*>(grad), static_cast<float*>(out), pull,
                    sizes, dims, alpha, alpha_strides, threads);
}
