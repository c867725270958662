// Gates with noise, pooling and moments (`mlti_jax/ops/_gates.py`): the moments and
// maxima of v = a * softplus(b + bias + noise), which is computed two rows at a time and never
// stored.
//
// Shapes: y [G, N, H, W, 2 C] holds a and b, noise [G, S, N, H, W, C] has S draws for
// the same y, pooled [G, S, N, H/2, W/2, C], bias and sign [G, C], moments [G, S, C].

#pragma once

#include "elementary.h"
#include "panels.h"
#include "pool_moments.h"

namespace {

// Two rows of a draw: v, softplus(b + bias + noise), and its derivative, each [positions, C].
template <typename T>
struct GatedRows {
  GatedRows(const Images& s) : size(2 * s.row()), memory(3 * size) {}
  T* value() { return memory.get(); }
  T* gate() { return memory.get() + size; }
  T* slope() { return memory.get() + 2 * size; }

  void Compute(const T* y, const T* bias, const T* noise,
                                         int64_t positions, int64_t channels) {
    constexpr int lanes = Simd<T>::kLanes;
    T *v = value(), *g = gate(), *d = slope();
    for (int64_t at = 0; at < positions * channels; at += channels, y += 2 * channels)
      for (int64_t c = 0; c < channels; c += lanes) {
        const int64_t rest = channels - c;
        const Vector<T> a = LoadFirst(y + c, rest), b = LoadFirst(y + channels + c, rest);
        Vector<T> soft, derivative;
        Softplus<T>(b + LoadFirst(bias + c, rest) + LoadFirst(noise + at + c, rest), soft,
                    derivative);
        StoreFirst<T>(v + at + c, a * soft, rest);
        StoreFirst<T>(g + at + c, soft, rest);
        StoreFirst<T>(d + at + c, derivative, rest);
      }
  }

 private:
  int64_t size;
  Scratch<T> memory;
};

// The images of all draws, [G * S, N, H, W, C].
inline Images ImagesOfDraws(ffi::Span<const int64_t> d) {
  const int64_t dims[] = {d[0] * d[1], d[2], d[3], d[4], d[5]};
  return Images(ffi::Span<const int64_t>(dims, 5));
}

template <ffi::DataType kType>
ffi::Error GatedPool(ffi::ThreadPool pool, ffi::Buffer<kType> noise_in,
                     ffi::Buffer<kType> y_in, ffi::Buffer<kType> bias_in,
                     ffi::Buffer<kType> sign_in,
                     ffi::ResultBuffer<kType> pooled_out,
                     ffi::ResultBuffer<kType> mean_out,
                     ffi::ResultBuffer<kType> variance_out) {
  using T = ffi::NativeType<kType>;
  const Images s = ImagesOfDraws(noise_in.dimensions());
  const int64_t draws = noise_in.dimensions()[1];
  Sums sums(s);
  std::vector<T> all_pivots(s.groups * s.channels);
  ParallelFor(pool, s.groups * s.parts, [&](int64_t part) {
    GatedRows<T> rows(s);
    auto compute = [&](int64_t draw, int64_t n, int64_t h) {
      const int64_t at = n * s.image() + h * s.row();
      rows.Compute(y_in.typed_data() + 2 * (draw / draws * s.number * s.image() + at),
                   bias_in.typed_data() + draw / draws * s.channels,
                   noise_in.typed_data() + draw * s.number * s.image() + at,
                   std::min<int64_t>(2, s.height - h) * s.width, s.channels);
    };
    const int64_t draw = part / s.parts;
    compute(draw, 0, 0);
    const std::vector<T> pivots(rows.value(), rows.value() + s.channels);
    if (part % s.parts == 0)
      std::copy_n(pivots.data(), s.channels, all_pivots.data() + draw * s.channels);
    s.ForPart(part, [&](int64_t draw, int64_t n) {
      T* pooled =
          pooled_out->typed_data() + (draw * s.number + n) * s.pooled_image();
      for (int64_t h = 0; h < s.height; h += 2) {
        compute(draw, n, h);
        PoolRows<T>(rows.value(), s.width, s.channels, h + 1 < s.height, pivots.data(),
                    sign_in.typed_data() + draw / draws * s.channels,
                    pooled + h / 2 * s.pooled_row(), sums.of(part, 0), sums.of(part, 1));
      }
    });
  });
  WriteMoments<T>(sums, s, all_pivots.data(), s.channels, mean_out->typed_data(),
                  variance_out->typed_data());
  return ffi::Error::Success();
}

// The maxima of sign * v over the windows of two rows, times sign.
template <typename T>
inline void Maxima(const T* v, int64_t width, int64_t channels, const T* signs, T* out) {
  ForChannels<T>(channels, [&](int64_t c, auto zero) {
    using V = decltype(zero);
    const V sign = Load<V>(signs + c);
    for (int64_t w = 0; w + 1 < width; w += 2) {
      const T* at = v + w * channels + c;
      const T* below = at + width * channels;
      const V top = Larger<V>(Load<V>(at) * sign, Load<V>(at + channels) * sign);
      const V low = Larger<V>(Load<V>(below) * sign, Load<V>(below + channels) * sign);
      Store(out + w / 2 * channels + c, V(Larger<V>(top, low) * sign));
    }
  });
}

// The cotangents of y and bias, summed over draws.
template <ffi::DataType kType>
ffi::Error GatedPoolCotangent(ffi::ThreadPool pool, ffi::Buffer<kType> noise_in,
                              ffi::Buffer<kType> y_in, ffi::Buffer<kType> bias_in,
                              ffi::Buffer<kType> sign_in,
                              ffi::Buffer<kType> /*pooled*/, ffi::Buffer<kType> mean_in,
                              ffi::Buffer<kType> by_pooled, ffi::Buffer<kType> by_mean,
                              ffi::Buffer<kType> by_variance,
                              ffi::ResultBuffer<kType> out,
                              ffi::ResultBuffer<kType> bias_out) {
  using T = ffi::NativeType<kType>;
  const Images s = ImagesOfDraws(noise_in.dimensions());
  const int64_t draws = noise_in.dimensions()[1], channels = s.channels;
  const Images y(y_in.dimensions());
  Sums sums(y);
  std::vector<MomentsCotangent<T>> moments;
  for (int64_t draw = 0; draw < s.groups; ++draw)
    moments.emplace_back(s, draw, mean_in.typed_data(), by_mean.typed_data(),
                         by_variance.typed_data());
  ParallelFor(pool, y.groups * y.parts, [&](int64_t part) {
    GatedRows<T> rows(s);
    Scratch<T> by_rows(2 * s.row()), most(s.pooled_row() + 1);
    double* by_bias = sums.of(part, 0);
    y.ForPart(part, [&](int64_t group, int64_t n) {
      for (int64_t h = 0; h < s.height; h += 2) {
        const int64_t positions = std::min<int64_t>(2, s.height - h) * s.width;
        const int64_t at_y = (group * s.number + n) * y.image() + h * y.row();
        const T* y_rows = y_in.typed_data() + at_y;
        T* by_y = out->typed_data() + at_y;
        std::fill_n(by_y, positions * 2 * channels, T(0));
        for (int64_t draw = group * draws; draw < (group + 1) * draws; ++draw) {
          const int64_t image = draw * s.number + n;
          const int64_t at_row = image * s.pooled_image() + h / 2 * s.pooled_row();
          rows.Compute(y_rows, bias_in.typed_data() + group * channels,
                       noise_in.typed_data() + image * s.image() + h * s.row(), positions,
                       channels);
          // The maxima again: those of the forward pass may differ by rounding, and
          // their positions are found by comparison.
          if (h + 1 < s.height)
            Maxima(rows.value(), s.width, channels,
                   sign_in.typed_data() + group * channels, most.get());
          CotangentRows<T>(rows.value(), s.width, channels, h + 1 < s.height, most.get(),
                           by_pooled.typed_data() + at_row, moments[draw],
                           by_rows.get());
          ForChannels<T>(channels, [&](int64_t c, auto zero) {
            using V = decltype(zero);
            V sum = zero;
            for (int64_t at = c; at < positions * channels; at += channels) {
              T *by_a = by_y + 2 * (at - c) + c, *by_b = by_a + channels;
              const V by_value = Load<V>(by_rows.get() + at);
              const V a = Load<V>(y_rows + 2 * (at - c) + c);
              const V by_sum = by_value * a * Load<V>(rows.slope() + at);
              Store(by_a, V(Load<V>(by_a) + by_value * Load<V>(rows.gate() + at)));
              Store(by_b, V(Load<V>(by_b) + by_sum));
              sum += by_sum;
            }
            AddTo<T>(by_bias + c, sum);
          });
        }
      }
    });
  });
  for (int64_t group = 0; group < y.groups; ++group)
    for (int64_t c = 0; c < channels; ++c)
      bias_out->typed_data()[group * channels + c] = T(sums.total(y, group, 0, c));
  return ffi::Error::Success();
}

}  // namespace
