// Max-pooling and moments in one pass, their tangent and cotangent
// (`mlti_jax/ops/_pool_moments.py`): pooled [G, N, H/2, W/2, C].

#pragma once

#include "common.h"

namespace {

// One or two rows of an image (`pair`): its maxima of sign * y over windows, times sign,
// and the sums of y and of its squares. Sums are relative to pivots, values of y, or a
// large mean would cost all digits.
template <typename T>
inline void PoolRows(const T* first, int64_t width, int64_t channels, bool pair,
                     const T* pivots, const T* signs, T* out, double* sum,
                     double* square) {
  const T* second = first + width * channels;
  ForChannels<T>(channels, [&](int64_t c, auto zero) {
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
      for (; w + 1 < width; w += 2) {
        int64_t at = w * channels + c;
        V a = Load<V>(first + at), b = Load<V>(first + at + channels);
        V d = Load<V>(second + at), e = Load<V>(second + at + channels);
        V most = Larger<V>(Larger<V>(a * sign, b * sign), Larger<V>(d * sign, e * sign));
        Store(out + w / 2 * channels + c, V(most * sign));
        add(a), add(b), add(d), add(e);
      }
    }
    for (; w < width; ++w) {
      add(Load<V>(first + w * channels + c));
      if (pair) add(Load<V>(second + w * channels + c));
    }
    AddTo<T>(sum + c, total);
    AddTo<T>(square + c, squares);
  });
}

// Mean and variance of each group; `pivots` [G, C], with distance `stride`.
template <typename T>
void WriteMoments(Sums& sums, const Images& s, const T* pivots, int64_t stride, T* mean,
                  T* variance) {
  for (int64_t group = 0; group < s.groups; ++group) {
    for (int64_t c = 0; c < s.channels; ++c) {
      double first = sums.total(s, group, 0, c) / s.positions();
      double square = sums.total(s, group, 1, c) / s.positions();
      int64_t at = group * s.channels + c;
      mean[at] = T(first + pivots[group * stride + c]);
      variance[at] = T(std::max(square - first * first, 0.0));
    }
  }
}

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
    s.ForPart(part, [&](int64_t group, int64_t n) {
      const T* pivots = y_all + group * s.number * s.image();
      T* pooled = pooled_out->typed_data() + (group * s.number + n) * s.pooled_image();
      for (int64_t h = 0; h < s.height; h += 2) {
        PoolRows<T>(pivots + n * s.image() + h * s.row(), s.width, s.channels,
                    h + 1 < s.height, pivots, sign_all + group * s.channels,
                    pooled + h / 2 * s.pooled_row(), sums.of(part, 0), sums.of(part, 1));
      }
    });
  });
  WriteMoments<T>(sums, s, y_all, s.number * s.image(), mean_out->typed_data(),
                  variance_out->typed_data());
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
      const T* means = mean_in.typed_data() + group * s.channels;
      for (int64_t h = 0; h < s.height; h += 2) {
        bool pair = h + 1 < s.height;
        const T* y = y_in.typed_data() + at_image + h * s.row();
        const T* t = t_in.typed_data() + at_image + h * s.row();
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
              for (int64_t offset :
                   {int64_t(0), s.channels, s.row(), s.row() + s.channels}) {
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

// What the cotangent of y needs of the cotangents of the moments: a y + b.
template <typename T>
struct MomentsCotangent {
  std::vector<T> slope, constant;

  MomentsCotangent(const Images& s, int64_t group, const T* means, const T* by_mean,
                   const T* by_variance)
      : slope(s.channels), constant(s.channels) {
    for (int64_t c = 0; c < s.channels; ++c) {
      int64_t at = group * s.channels + c;
      slope[c] = T(2 * by_variance[at] / s.positions());
      constant[c] = T(by_mean[at] / s.positions() - double(slope[c]) * means[at]);
    }
  }
};

// The cotangent of one or two rows of y: that of the maxima, shared by equal ones, and
// that of the moments.
template <typename T>
inline void CotangentRows(const T* y, int64_t width, int64_t channels, bool pair,
                          const T* most, const T* by_most,
                          const MomentsCotangent<T>& moments, T* to) {
  const int64_t row = width * channels;
  ForChannels<T>(channels, [&](int64_t c, auto zero) {
    using V = decltype(zero);
    const V a = Load<V>(moments.slope.data() + c);
    const V b = Load<V>(moments.constant.data() + c);
    int64_t w = 0;
    if (pair) {
      for (; w + 1 < width; w += 2) {
        int64_t at = w * channels + c;
        const V p = Load<V>(most + w / 2 * channels + c);
        V y0 = Load<V>(y + at), y1 = Load<V>(y + at + channels);
        V y2 = Load<V>(y + at + row);
        V y3 = Load<V>(y + at + row + channels);
        const V one = zero + 1;
        V count = (Where<V>(y0, p, one) + Where<V>(y1, p, one)) +
                  (Where<V>(y2, p, one) + Where<V>(y3, p, one));
        V share = Load<V>(by_most + w / 2 * channels + c) / count;
        Store(to + at, V(a * y0 + b + Where<V>(y0, p, share)));
        Store(to + at + channels, V(a * y1 + b + Where<V>(y1, p, share)));
        Store(to + at + row, V(a * y2 + b + Where<V>(y2, p, share)));
        Store(to + at + row + channels, V(a * y3 + b + Where<V>(y3, p, share)));
      }
    }
    for (; w < width; ++w) {
      int64_t at = w * channels + c;
      Store(to + at, V(a * Load<V>(y + at) + b));
      if (pair) Store(to + at + row, V(a * Load<V>(y + at + row) + b));
    }
  });
}

// The transpose of PoolMomentsTangent: the cotangent of t.
template <ffi::DataType kType>
ffi::Error PoolMomentsCotangent(ffi::ThreadPool pool, ffi::Buffer<kType> y_in,
                                ffi::Buffer<kType> pooled_in, ffi::Buffer<kType> mean_in,
                                ffi::Buffer<kType> by_pooled, ffi::Buffer<kType> by_mean,
                                ffi::Buffer<kType> by_variance,
                                ffi::ResultBuffer<kType> out) {
  using T = ffi::NativeType<kType>;
  Images s(y_in.dimensions());
  ParallelFor(pool, s.groups * s.parts, [&](int64_t part) {
    const MomentsCotangent<T> moments(s, part / s.parts, mean_in.typed_data(),
                                      by_mean.typed_data(), by_variance.typed_data());
    s.ForPart(part, [&](int64_t group, int64_t n) {
      int64_t at_image = (group * s.number + n) * s.image();
      int64_t at_pooled = (group * s.number + n) * s.pooled_image();
      for (int64_t h = 0; h < s.height; h += 2) {
        int64_t at = at_image + h * s.row(), at_row = at_pooled + h / 2 * s.pooled_row();
        CotangentRows<T>(y_in.typed_data() + at, s.width, s.channels, h + 1 < s.height,
                         pooled_in.typed_data() + at_row, by_pooled.typed_data() + at_row,
                         moments, out->typed_data() + at);
      }
    });
  });
  return ffi::Error::Success();
}

}  // namespace
