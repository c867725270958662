// Max-pooling and moments in one pass, their tangent and cotangent
// (`mlti_jax/ops/_pool_moments.py`): pooled [G, N, H/2, W/2, C].

#pragma once

#include "common.h"

namespace {

// Moments of y and the maximum of sign * y over windows, times sign.
template <ffi::DataType kType>
ffi::Error PoolMoments(ffi::ThreadPool pool, ffi::Buffer<kType> y_in,
                       ffi::Buffer<kType> sign_in, ffi::ResultBuffer<kType> pooled_out,
                       ffi::ResultBuffer<kType> mean_out,
                       ffi::ResultBuffer<kType> variance_out) {
  using T = ffi::NativeType<kType>;
  Images s(y_in.dimensions());
  Sums sums(s);
  const T *y_all = y_in.typed_data(), *sign_all = sign_in.typed_data();
  ParallelFor(pool, s.groups * s.parts, [&](int64_t part) {
    double *sum = sums.of(part, 0), *square = sums.of(part, 1);
    s.ForPart(part, [&](int64_t group, int64_t n) {
      // Sums are relative to the first value, or a large mean would cost all digits.
      const T* pivots = y_all + group * s.number * s.image();
      const T* signs = sign_all + group * s.channels;
      const T* image = pivots + n * s.image();
      T* pooled =
          pooled_out->typed_data() + (group * s.number + n) * s.pooled_image();
      for (int64_t h = 0; h < s.height; h += 2) {
        bool pair = h + 1 < s.height;
        const T *first = image + h * s.row(), *second = first + s.row();
        T* out = pooled + h / 2 * s.pooled_row();
        ForChannels<T>(s.channels, [&](int64_t c, auto zero) {
          using V = decltype(zero);
          const V pivot = Load<V>(pivots + c), sign = Load<V>(signs + c);
          V total = zero, squares = zero;
          auto add = [&](V v) {
            v -= pivot;
            total += v;
            squares += v * v;
          };
          int64_t w = 0;
          if (pair) {
            for (; w + 1 < s.width; w += 2) {
              int64_t at = w * s.channels + c;
              V a = Load<V>(first + at), b = Load<V>(first + at + s.channels);
              V d = Load<V>(second + at), e = Load<V>(second + at + s.channels);
              V most = Larger<V>(Larger<V>(a * sign, b * sign),
                                 Larger<V>(d * sign, e * sign));
              Store(out + w / 2 * s.channels + c, V(most * sign));
              add(a), add(b), add(d), add(e);
            }
          }
          for (; w < s.width; ++w) {
            add(Load<V>(first + w * s.channels + c));
            if (pair) add(Load<V>(second + w * s.channels + c));
          }
          AddTo<T>(sum + c, total);
          AddTo<T>(square + c, squares);
        });
      }
    });
  });
  for (int64_t group = 0; group < s.groups; ++group) {
    for (int64_t c = 0; c < s.channels; ++c) {
      double mean = sums.total(s, group, 0, c) / s.positions();
      double square = sums.total(s, group, 1, c) / s.positions();
      int64_t at = group * s.channels + c;
      mean_out->typed_data()[at] = T(mean + y_all[group * s.number * s.image() + c]);
      variance_out->typed_data()[at] = T(std::max(square - mean * mean, 0.0));
    }
  }
  return ffi::Error::Success();
}

// The derivative of PoolMoments in the direction t: t at the maxima of y (their mean if
// several are equal), mean(t), 2 mean((y - mean) t).
template <ffi::DataType kType>
ffi::Error PoolMomentsTangent(ffi::ThreadPool pool, ffi::Buffer<kType> y_in,
                              ffi::Buffer<kType> pooled_in, ffi::Buffer<kType> mean_in,
                              ffi::Buffer<kType> t_in,
                              ffi::ResultBuffer<kType> pooled_out,
                              ffi::ResultBuffer<kType> mean_out,
                              ffi::ResultBuffer<kType> variance_out) {
  using T = ffi::NativeType<kType>;
  Images s(y_in.dimensions());
  Sums sums(s);
  ParallelFor(pool, s.groups * s.parts, [&](int64_t part) {
    double *sum = sums.of(part, 0), *product = sums.of(part, 1);
    s.ForPart(part, [&](int64_t group, int64_t n) {
      int64_t at_image = (group * s.number + n) * s.image();
      int64_t at_pooled = (group * s.number + n) * s.pooled_image();
      const T *means = mean_in.typed_data() + group * s.channels;
      for (int64_t h = 0; h < s.height; h += 2) {
        bool pair = h + 1 < s.height;
        const T *y = y_in.typed_data() + at_image + h * s.row();
        const T *t = t_in.typed_data() + at_image + h * s.row();
        int64_t at_row = at_pooled + h / 2 * s.pooled_row();
        const T* most = pooled_in.typed_data() + at_row;
        T* out = pooled_out->typed_data() + at_row;
        ForChannels<T>(s.channels, [&](int64_t c, auto zero) {
          using V = decltype(zero);
          const V mean = Load<V>(means + c);
          V total = zero, products = zero;
          auto add = [&](V y, V t) {
            total += t;
            products += (y - mean) * t;
          };
          int64_t w = 0;
          if (pair) {
            for (; w + 1 < s.width; w += 2) {
              const V p = Load<V>(most + w / 2 * s.channels + c);
              V count = zero, chosen = zero;
              for (int64_t offset : {int64_t(0), s.channels, s.row(),
                                     s.row() + s.channels}) {
                int64_t at = w * s.channels + c + offset;
                V y_at = Load<V>(y + at), t_at = Load<V>(t + at);
                count += Where<V>(y_at, p, zero + 1);
                chosen += Where<V>(y_at, p, t_at);
                add(y_at, t_at);
              }
              Store(out + w / 2 * s.channels + c, V(chosen / count));
            }
          }
          for (; w < s.width; ++w) {
            int64_t at = w * s.channels + c;
            add(Load<V>(y + at), Load<V>(t + at));
            if (pair) add(Load<V>(y + at + s.row()), Load<V>(t + at + s.row()));
          }
          AddTo<T>(sum + c, total);
          AddTo<T>(product + c, products);
        });
      }
    });
  });
  for (int64_t group = 0; group < s.groups; ++group) {
    for (int64_t c = 0; c < s.channels; ++c) {
      int64_t at = group * s.channels + c;
      mean_out->typed_data()[at] = T(sums.total(s, group, 0, c) / s.positions());
      variance_out->typed_data()[at] = T(2 * sums.total(s, group, 1, c) / s.positions());
    }
  }
  return ffi::Error::Success();
}

// The transpose of PoolMomentsTangent: the cotangent of t.
template <ffi::DataType kType>
ffi::Error PoolMomentsCotangent(ffi::ThreadPool pool, ffi::Buffer<kType> y_in,
                                ffi::Buffer<kType> pooled_in, ffi::Buffer<kType> mean_in,
                                ffi::Buffer<kType> by_pooled,
                                ffi::Buffer<kType> by_mean,
                                ffi::Buffer<kType> by_variance,
                                ffi::ResultBuffer<kType> out) {
  using T = ffi::NativeType<kType>;
  Images s(y_in.dimensions());
  ParallelFor(pool, s.groups * s.parts, [&](int64_t part) {
    std::vector<T> constant(s.channels), slope(s.channels);
    for (int64_t c = 0; c < s.channels; ++c) {
      int64_t at = part / s.parts * s.channels + c;
      slope[c] = T(2 * by_variance.typed_data()[at] / s.positions());
      constant[c] = T(by_mean.typed_data()[at] / s.positions() -
                      double(slope[c]) * mean_in.typed_data()[at]);
    }
    s.ForPart(part, [&](int64_t group, int64_t n) {
      int64_t at_image = (group * s.number + n) * s.image();
      int64_t at_pooled = (group * s.number + n) * s.pooled_image();
      for (int64_t h = 0; h < s.height; h += 2) {
        bool pair = h + 1 < s.height;
        const T* y = y_in.typed_data() + at_image + h * s.row();
        T* to = out->typed_data() + at_image + h * s.row();
        int64_t at_row = at_pooled + h / 2 * s.pooled_row();
        const T* most = pooled_in.typed_data() + at_row;
        const T* g = by_pooled.typed_data() + at_row;
        ForChannels<T>(s.channels, [&](int64_t c, auto zero) {
          using V = decltype(zero);
          const V a = Load<V>(slope.data() + c), b = Load<V>(constant.data() + c);
          int64_t w = 0;
          if (pair) {
            for (; w + 1 < s.width; w += 2) {
              int64_t at = w * s.channels + c;
              const V p = Load<V>(most + w / 2 * s.channels + c);
              V y0 = Load<V>(y + at), y1 = Load<V>(y + at + s.channels);
              V y2 = Load<V>(y + at + s.row());
              V y3 = Load<V>(y + at + s.row() + s.channels);
              const V one = zero + 1;
              V count = (Where<V>(y0, p, one) + Where<V>(y1, p, one)) +
                        (Where<V>(y2, p, one) + Where<V>(y3, p, one));
              V share = Load<V>(g + w / 2 * s.channels + c) / count;
              Store(to + at, V(a * y0 + b + Where<V>(y0, p, share)));
              Store(to + at + s.channels, V(a * y1 + b + Where<V>(y1, p, share)));
              Store(to + at + s.row(), V(a * y2 + b + Where<V>(y2, p, share)));
              Store(to + at + s.row() + s.channels,
                    V(a * y3 + b + Where<V>(y3, p, share)));
            }
          }
          for (; w < s.width; ++w) {
            int64_t at = w * s.channels + c;
            Store(to + at, V(a * Load<V>(y + at) + b));
            if (pair) Store(to + at + s.row(), V(a * Load<V>(y + at + s.row()) + b));
          }
        });
      }
    });
  });
  return ffi::Error::Success();
}

}  // namespace
