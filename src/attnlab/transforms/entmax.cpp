// alpha-entmax, sparsemax included, and its gradient. Formulas and the limits on alpha: rows.py and entmax.py.
//
// Two ways to use vectors. sparsemax and entmax15, a few operations a key, put keys of one row into a vector. Any
// other alpha takes a logarithm and an exponential a key: there the keys that can have a share are picked out first,
// and a vector holds one key of each of LANES rows, so that no sum runs across a vector. What does not come out in
// float32 is solved again in float64.

#include <atomic>

namespace {

constexpr int MOST_STEPS = 60;
constexpr int BOUND_STEPS = 2;
constexpr int START_STEPS = 3;
constexpr int ENTMAX_STEPS = 12;
// Float32 sums of a row carry about this much rounding.
constexpr float SETTLED = 2e-6f;
constexpr float TINY = 1e-30f;
// Sums over more keys than this are made in parts: one long one rounds too much.
constexpr int64_t CHUNK = 64;
constexpr float THIRD = 1.0f / 3, SIXTH = 1.0f / 6;
// Within this of one the sum is taken for near its root, up to this e = alpha - 1 smooth enough for a third-order step.
constexpr float NEAR = 0.1f;
constexpr float STEEP = 0.65f;

// e = alpha - 1, and never a division by zero.
double excess_of(double alpha) { return std::abs(alpha - 1) < 1e-12 ? 1e-12 : alpha - 1; }

// ---- One row a time: its probabilities into `out`, and whether their sum is one ----

template <class S>
bool sparsemax_row(const Floats* __restrict w, S* __restrict out, int64_t keys) {
  const int64_t blocks = (keys + LANES - 1) / LANES;
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
    const Floats p = larger(w[i] - tau, Floats{});
    total += p;
    store_block(out, i, keys, p);
  }
  return std::abs(sum(total) - 1) <= SETTLED;
}

// On one support the sum is a parabola in tau, whose root is a step; where it has none, a Newton step on its root.
template <class S>
bool entmax15_row(const Floats* __restrict w, S* __restrict out, int64_t keys) {
  const int64_t blocks = (keys + LANES - 1) / LANES;
  float tau = -1;
  for (int step = 0; step < MOST_STEPS; ++step) {
    Floats squares{}, total{}, size{};
    for (int64_t i = 0; i < blocks; ++i) {
      const Floats excess = larger(0.5f * w[i] - tau, Floats{});
      total += excess;
      squares += excess * excess;
      size += excess > 0 ? all(1) : Floats{};
    }
    const float mass = sum(squares), slope = sum(total), under = slope * slope - sum(size) * (mass - 1);
    if (under > 0)
      tau += (mass - 1) / (slope + std::sqrt(under));
    else
      tau += (std::sqrt(mass) - 1) * std::sqrt(mass) / slope;
    if (std::abs(mass - 1) < 1e-3f) break;
  }
  Floats total{};
  for (int64_t i = 0; i < blocks; ++i) {
    const Floats excess = larger(0.5f * w[i] - tau, Floats{});
    total += excess * excess;
    store_block(out, i, keys, excess * excess);
  }
  return std::abs(sum(total) - 1) <= SETTLED;
}

// scale * u (g - sum(u g) / sum u) with u = p^(2 - alpha): 1 on the support for sparsemax, sqrt p for entmax15.
template <class S>
void gradient_row(const S* p, const S* grad, S* out, int64_t keys, bool sparsemax, float scale) {
  auto weight = [&](int64_t i) {
    const Floats v = load_block(p, i, keys);
    const Floats one = v == v ? all(1) : v;
    return sparsemax ? (v <= 0 ? Floats{} : one) : root_of(v);
  };
  Floats total{}, pulled{};
  for (int64_t i = 0; i * LANES < keys; ++i) {
    const Floats u = weight(i);
    total += u;
    pulled += u > 0 ? u * load_block(grad, i, keys) : u;
  }
  const float size = sum(total), mean = size > 0 ? sum(pulled) / size : 0 * size;
  for (int64_t i = 0; i * LANES < keys; ++i) {
    const Floats u = weight(i);
    store_block(out, i, keys, u > 0 ? scale * u * (load_block(grad, i, keys) - mean) : u);
  }
}

// For the tests: float64 costs many times float32, so few rows may come here.
std::atomic<int64_t> exact_rows{0};

// In float64: Newton steps on S^e - 1 inside a bracket, and halving where they do not get on.
template <class S>
void exact_row(const Floats* row, S* out, int64_t keys, double alpha) {
  exact_rows.fetch_add(1, std::memory_order_relaxed);
  const float* w = reinterpret_cast<const float*>(row);
  const double eps = excess_of(alpha);
  std::vector<double> near;
  std::vector<int64_t> at;
  for (int64_t i = 0; i < keys; ++i) {
    store_one(out + i, 0);
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
  for (size_t i = 0; i < near.size(); ++i) store_one(out + at[i], static_cast<float>(q[i]));
}

// ---- LANES rows at a time ----

// The keys picked out of each of LANES rows: the j-th of row `lane` is value[j][lane], at place at[j][lane] of its row.
struct Picked {
  std::vector<Floats> value, second, result;
  std::vector<int32_t> at;
  int64_t count[LANES] = {};
  std::vector<float> places;
  explicit Picked(int64_t room)
      : value(room), second(room), result(room), at(room * LANES), places(room + LANES) {}

  // The keys of a row whose bit in bits_at(block) is set; take(key, j) notes what the j-th of them holds.
  template <class Bits, class Take>
  void pick(int64_t lane, int64_t blocks, Bits bits_at, Take take) {
    Ints index;
    for (int64_t i = 0; i < LANES; ++i) index[i] = static_cast<int32_t>(i);
    int64_t n = 0;
    for (int64_t i = 0; i < blocks; ++i, index += static_cast<int32_t>(LANES)) {
      const uint32_t bits = bits_at(i);
      squeeze(places.data() + n, (Floats)index, bits);
      n += __builtin_popcount(bits);
    }
    for (int64_t j = 0; j < n; ++j) {
      int32_t key;
      std::memcpy(&key, places.data() + j, sizeof key);
      at[j * LANES + lane] = key;
      take(key, j * LANES + lane);
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
    const double excess = excess_of(alpha);
    const float least = excess < 1 ? least_theta(w, blocks, excess < 0.5) : 0;
    const float cut = excess > 0 ? static_cast<float>(std::max(least - 1 / excess, -3e38)) : -3e38f;
    float* value = reinterpret_cast<float*>(picked.value.data());
    picked.pick(
        lane, blocks, [&](int64_t i) { return bits_of(w[i] > cut); },
        [&](int64_t key, int64_t to) { value[to] = reinterpret_cast<const float*>(w)[key]; });
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

  // Where origin would be if all keys were equal, as many as the row counts for. That number is found at alpha = 1.5
  // and 2, where steps are cheap; its logarithm goes on to alpha along a line, bent as rows of normal scores bend it.
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
      const Floats norm = root_of(square);
      root += (norm - 1) * norm / larger(excesses, all(TINY));
      tau += (mass - 1) / larger(size, all(1));
    }
    // 1 - theta / 2 = -root at alpha = 1.5, 1 - theta = -tau at alpha = 2
    const Floats keys15 = -2 * log_of(larger(-root, all(1e-6f))), keys2 = -log_of(larger(-tau, all(1e-6f)));
    const Floats line = keys2 + (1 - eps) * 2 * (keys15 - keys2);
    const Floats bend = (keys15 - keys2) * (1 - eps) * (0.5f - eps) * 1.5f / (0.15f + larger(eps, Floats{}));
    const Floats exponent = eps * larger(line + bend, Floats{});
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
    const Floats inverse = 1 / eps, binary = inverse * LOG2_E, one = near_softmax() ? all(1) : Floats{};
    // `theta` is -origin / e: theta itself near softmax, theta - 1 / e elsewhere; theta is not below 0.
    Floats origin = start(longest), theta_low = near_softmax() ? Floats{} : -inverse, theta_high = all(INF), off{};
    for (int step = 0; step < ENTMAX_STEPS; ++step) {
      Floats mass{}, slope{}, bend{};
      const auto add = [&](auto near) {
        for (int64_t begin = 0; begin < longest; begin += CHUNK) {
          Floats masses{}, slopes{};
          for (int64_t j = begin; j < std::min(begin + CHUNK, longest); ++j) {
            const Floats x = origin + eps * w[j];
            const Floats base = larger(near ? x + one : x, all(TINY));
            const Floats reciprocal = 1 / base;
            Logarithm log = log_parts(base);
            if constexpr (near) log.rest += (x - (base - one)) * reciprocal;  // what the sum x + one lost of x
            p[j] = base > TINY ? exp2_of(log.n * inverse + log.rest * binary) : Floats{};
            const Floats fall = p[j] * reciprocal;
            masses += p[j];
            slopes += fall;
            bend += fall * reciprocal;
          }
          mass += masses;
          slope += slopes;
        }
      };
      if (any(near_softmax()))
        add(std::true_type{});
      else
        add(std::false_type{});
      off = empty ? Floats{} : mass - 1;
      const Ints open = (off > 1e-6f) | (off < -1e-6f);
      if (!any(open)) break;
      // Near the root a step of third order; at first, S^(1-e) (S^e - 1) / e, which cannot overshoot.
      const Floats log_mass = log_of(larger(mass, all(TINY)));
      const Floats curve = eps < STEEP ? bend / (slope * slope) : all(1);
      const Floats near = off * (1 + 0.5f * (1 - eps) * off * curve);
      const Floats far = (exp_of(log_mass) - exp_of((1 - eps) * log_mass)) * inverse;
      const Floats rise = ((off < NEAR) & (off > -NEAR)) ? near : far;
      const Floats theta = -origin * inverse;
      theta_low = off > 0 ? theta : theta_low;
      theta_high = off < 0 ? theta : theta_high;
      const Floats move = rise / larger(slope, all(TINY)), next = theta + move;
      const Floats middle = 0.5f * (larger(theta_low, theta - 1) + smaller(theta_high, theta + 1));
      const Floats moved = origin - eps * move;
      const Ints inside = (next >= theta_low) & (next <= theta_high);
      // a row that is done stands still, so that its neighbours do not change its digits
      origin = open ? (inside ? moved : -eps * middle) : origin;
    }
    return (off > SETTLED) | (off < -SETTLED) | (off != off);
  }
};

// The gradient in the scores, u (g - sum(u g) / sum u) with u = p^(2 - alpha), and g . dp/dalpha: see _backward.
struct EntmaxGradient {
  Picked picked;
  Floats eps{}, scale{};
  explicit EntmaxGradient(int64_t keys) : picked(keys + 1) {}

  template <class S>
  void pick(int64_t lane, const S* p, const S* grad, int64_t keys, double alpha) {
    const double excess = excess_of(alpha);
    float* value = reinterpret_cast<float*>(picked.value.data());
    float* pull = reinterpret_cast<float*>(picked.second.data());
    picked.pick(
        lane, (keys + LANES - 1) / LANES,
        [&](int64_t i) { return bits_of(~(load_block(p, i, keys) <= 0)); },  // NaN stays
        [&](int64_t key, int64_t to) {
          value[to] = load_one(p + key);
          pull[to] = load_one(grad + key);
        });
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
    Floats chunk[4] = {};
    for (int64_t j = 0; j < longest; ++j) {
      if (j % CHUNK == 0) {
        total += chunk[0], pulled += chunk[1], rises += chunk[2], risen += chunk[3];
        chunk[0] = chunk[1] = chunk[2] = chunk[3] = Floats{};
      }
      const Floats log_p = log_of(larger(p[j], all(1.2e-38f)));
      const Floats t = eps * log_p;
      const Floats inverse = exp_of(-t);
      weight[j] = p[j] * inverse;
      chunk[0] += weight[j];
      chunk[1] += weight[j] * grad[j];
      if (learned) {
        const Floats inner = 1 - t * THIRD * (1 - t * 0.25f * (1 - t * 0.2f * (1 - t * SIXTH)));
        const Floats series = -0.5f * log_p * log_p * inner;
        const Floats h = ((t < 0.1f) & (t > -0.1f)) ? series : (1 - inverse - t) * by_square;
        chunk[2] += p[j] * h;
        chunk[3] += p[j] * h * grad[j];
      }
    }
    total += chunk[0], pulled += chunk[1], rises += chunk[2], risen += chunk[3];
    const Floats share = 1 / (total > 0 ? total : all(1));
    const Floats mean = pulled * share;
    for (int64_t j = 0; j < longest; ++j) weight[j] *= scale * (grad[j] - mean);
    return risen - mean * rises;
  }
};

template <class S>
void entmax(const S* scores, S* out, const int64_t* sizes, int64_t dims, const bool* keep, const int64_t* keep_strides,
            const float* scale, const int64_t* scale_strides, const double* alpha, const int64_t* alpha_strides,
            int threads) {
  const int64_t keys = sizes[dims], blocks = (keys + LANES - 1) / LANES, step = keep_strides[dims];
  in_parts(sizes, dims, threads, [&](int64_t first, int64_t end) {
    // one row of w for each lane: those that come out wrong are solved again
    std::vector<Floats> kept_rows(blocks * LANES);
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
        if (off[lane])
          exact_row(&kept_rows[lane * blocks], to, keys, alphas[lane]);
        else
          group.picked.write(lane, to, keys);
      }
      lanes = 0;
    };
    for (int64_t row = first; row < end; ++row, walk.next()) {
      Floats* w = &kept_rows[lanes * blocks];
      const bool* mask = keep == nullptr ? nullptr : keep + walk.given[0].at;
      const double a = alpha[walk.given[2].at];
      const float by = scale[walk.given[1].at];
      const float top = read_row(scores + row * keys, mask, step, keys, by, w, blocks);
      if (top == -INF) {
        fill_row(out + row * keys, keys, 0.0f);
      } else if (top != top || a != a || by != by) {
        fill_row(out + row * keys, keys, std::numeric_limits<float>::quiet_NaN());
      } else if (a == 2 || a == 1.5) {
        S* to = out + row * keys;
        if (!(a == 2 ? sparsemax_row(w, to, keys) : entmax15_row(w, to, keys))) exact_row(w, to, keys, a);
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
                     const float* scale, const int64_t* scale_strides, const double* alpha,
                     const int64_t* alpha_strides, int threads) {
  const int64_t keys = sizes[dims];
  in_parts(sizes, dims, threads, [&](int64_t first, int64_t end) {
    EntmaxGradient group(keys);
    Walk<2> walk{sizes, dims, {}, {{scale_strides}, {alpha_strides}}};
    walk.start(first);
    int64_t lanes = 0, owner[LANES];
    auto solve = [&] {
      for (int64_t lane = lanes; lane < LANES; ++lane) group.picked.count[lane] = 0;
      const Floats pulls = group.solve(pull != nullptr);
      for (int64_t lane = 0; lane < lanes; ++lane) {
        group.picked.write(lane, out + owner[lane] * keys, keys);
        if (pull != nullptr) pull[owner[lane]] = pulls[lane];
      }
      lanes = 0;
    };
    for (int64_t row = first; row < end; ++row, walk.next()) {
      const double a = alpha[walk.given[1].at];
      if (pull == nullptr && (a == 2 || a == 1.5)) {
        gradient_row(p + row * keys, grad + row * keys, out + row * keys, keys, a == 2, scale[walk.given[0].at]);
      } else {
        group.pick(lanes, p + row * keys, grad + row * keys, keys, a);
        group.scale[lanes] = scale[walk.given[0].at];
        owner[lanes++] = row;
        if (lanes == LANES) solve();
      }
    }
    if (lanes > 0) solve();
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
                                        const int64_t* sizes, int64_t dims, const float* scale,
                                        const int64_t* scale_strides, const double* alpha,
                                        const int64_t* alpha_strides, int threads) {
  if (halves)
    entmax_gradient(static_cast<const uint16_t*>(p), static_cast<const uint16_t*>(grad), static_cast<uint16_t*>(out),
                    pull, sizes, dims, scale, scale_strides, alpha, alpha_strides, threads);
  else
    entmax_gradient(static_cast<const float*>(p), static_cast<const float*>(grad), static_cast<float*>(out), pull,
                    sizes, dims, scale, scale_strides, alpha, alpha_strides, threads);
}

extern "C" int64_t attnlab_exact_rows() { return exact_rows; }
