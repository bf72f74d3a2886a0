// Total variation denoising of each row, and the mean over its runs. The method and its source: fusedmax.py.

namespace {

// The denoised row of n keys, and the number of each key's run from 1 on.
void denoise(const float* z, float* y, int32_t* label, int64_t n, double tv) {
  // The run from key `start` has reached key `at`. Its value lies between low and high, for which the dual variable
  // behind `at` is dual_low and dual_high; they last touched +tv and -tv at edge_low and edge_high.
  int64_t at = 0, start = 0, edge_low = 0, edge_high = 0;
  double low = z[0] - tv, high = z[0] + tv, dual_low = tv, dual_high = -tv;
  int32_t runs = 0;
  auto end = [&](int64_t last, double value) {
    ++runs;
    for (; start <= last; ++start) y[start] = static_cast<float>(value), label[start] = runs;
    at = start;
  };
  while (start < n) {
    const bool more = at + 1 < n;
    // The dual variable must stay within tv of zero between keys and be zero behind the last.
    const double next_low = more ? dual_low + (z[at + 1] - low) : dual_low;
    const double next_high = more ? dual_high + (z[at + 1] - high) : dual_high, room = more ? tv : 0;
    if (next_low < -room || next_high > room) {
      const bool down = next_low < -room;
      end(down ? edge_low : edge_high, down ? low : high);
      if (start == n) return;
      edge_low = edge_high = at;
      low = down ? z[at] : z[at] - 2 * tv;
      high = low + 2 * tv;
      dual_low = tv;
      dual_high = -tv;
    } else if (more) {
      ++at;
      dual_low = next_low;
      dual_high = next_high;
      const double size = static_cast<double>(at - start + 1);
      if (dual_low >= tv) {
        low += (dual_low - tv) / size;
        dual_low = tv;
        edge_low = at;
      }
      if (dual_high <= -tv) {
        high += (dual_high + tv) / size;
        dual_high = -tv;
        edge_high = at;
      }
    } else {
      end(n - 1, low + dual_low / static_cast<double>(at - start + 1));
    }
  }
}

template <class Label>
void fuse_runs(const float* z, float* y, Label* label, const int64_t* sizes, int64_t dims, const bool* keep,
               const int64_t* keep_strides, double tv, int threads) {
  const int64_t keys = sizes[dims], step = keep_strides[dims];
  in_parts(sizes, dims, threads, [&](int64_t first, int64_t end) {
    std::vector<float> packed(keys), denoised(keys);
    std::vector<int32_t> run(keys);
    Walk<1> walk{sizes, dims, {}, {{keep_strides}}};
    walk.start(first);
    for (int64_t row = first; row < end; ++row, walk.next()) {
      auto kept = [&](int64_t i) { return keep == nullptr || keep[walk.given[0].at + i * step]; };
      int64_t n = 0;
      for (int64_t i = 0; i < keys; ++i) {
        packed[n] = z[row * keys + i];
        n += kept(i);
      }
      float largest = 0;
      for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::abs(packed[i]));
      // from there on all keys are one run
      const double most = 1 + 2.0 * static_cast<double>(n) * largest;
      if (n > 0) denoise(packed.data(), denoised.data(), run.data(), n, std::min(tv, most));
      // A masked key has the label of the kept key before it, or 0.
      int64_t at = 0;
      for (int64_t i = 0; i < keys; ++i) {
        const bool here = kept(i);
        y[row * keys + i] = here ? denoised[at] : -INF;
        at += here;
        label[row * keys + i] = static_cast<Label>(at > 0 ? run[at - 1] : 0);
      }
    }
  });
}

template <class Label>
void run_means(const float* grad, const Label* label, float* out, const int64_t* sizes, int64_t dims, const bool* keep,
               const int64_t* keep_strides, int threads) {
  const int64_t keys = sizes[dims], step = keep_strides[dims];
  in_parts(sizes, dims, threads, [&](int64_t first, int64_t end) {
    Walk<1> walk{sizes, dims, {}, {{keep_strides}}};
    walk.start(first);
    for (int64_t row = first; row < end; ++row, walk.next()) {
      auto kept = [&](int64_t i) { return keep == nullptr || keep[walk.given[0].at + i * step]; };
      const float* g = grad + row * keys;
      const Label* of = label + row * keys;
      float* to = out + row * keys;
      for (int64_t start = 0, stop = 0; start < keys; start = stop) {
        double total = 0;
        int64_t size = 0;
        for (stop = start; stop < keys && of[stop] == of[start]; ++stop)
          if (kept(stop)) total += g[stop], ++size;
        const float mean = size > 0 ? static_cast<float>(total / static_cast<double>(size)) : 0.0f;
        for (int64_t i = start; i < stop; ++i) to[i] = kept(i) ? mean : 0.0f;
      }
    }
  });
}

}  // namespace

extern "C" void attnlab_fuse_runs(int label_bytes, const float* z, float* y, void* label, const int64_t* sizes,
                                  int64_t dims, const bool* keep, const int64_t* keep_strides, double tv, int threads) {
  if (label_bytes == 1)
    fuse_runs(z, y, static_cast<uint8_t*>(label), sizes, dims, keep, keep_strides, tv, threads);
  else if (label_bytes == 2)
    fuse_runs(z, y, static_cast<int16_t*>(label), sizes, dims, keep, keep_strides, tv, threads);
  else
    fuse_runs(z, y, static_cast<int32_t*>(label), sizes, dims, keep, keep_strides, tv, threads);
}

extern "C" void attnlab_run_means(int label_bytes, const float* grad, const void* label, float* out,
                                  const int64_t* sizes, int64_t dims, const bool* keep, const int64_t* keep_strides,
                                  int threads) {
  if (label_bytes == 1)
    run_means(grad, static_cast<const uint8_t*>(label), out, sizes, dims, keep, keep_strides, threads);
  else if (label_bytes == 2)
    run_means(grad, static_cast<const int16_t*>(label), out, sizes, dims, keep, keep_strides, threads);
  else
    run_means(grad, static_cast<const int32_t*>(label), out, sizes, dims, keep, keep_strides, threads);
}
