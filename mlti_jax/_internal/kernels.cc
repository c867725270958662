// Kernels of mlti_jax/ops for CPUs, called by XLA through its foreign function
// interface. The forms there are the reference; each kernel computes the same values
// up to rounding, for float32 and float64, with the same result for any number of threads.
//
// Shapes: y [G, N, H, W, C], images of G groups (tasks); pooled [G, N, H/2, W/2, C];
// everything per channel is [G, C].

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
constexpr int kChannelTile = 4;  // 2 x 3 x 4 accumulators of 32 registers
#elif defined(__AVX__)
constexpr int kVectorBytes = 32;
constexpr int kChannelTile = 2;  // 2 x 3 x 2 accumulators of 16 registers
#else
constexpr int kVectorBytes = 16;
constexpr int kChannelTile = 2;
#endif

template <typename T>
struct Simd {
  static constexpr int kLanes = kVectorBytes / sizeof(T);
  typedef T Vector __attribute__((vector_size(kVectorBytes)));
};

template <typename T>
using Vector = typename Simd<T>::Vector;

template <typename V, typename T>
inline V Load(const T* p) {
  V v;
  std::memcpy(&v, p, sizeof(V));
  return v;
}

template <typename V, typename T>
inline void Store(T* p, V v) {
  std::memcpy(p, &v, sizeof(V));
}

// A vector compares lane by lane and a number as a whole: both give `value` or 0.
template <typename V>
inline V Where(V a, V b, V value) {
  if constexpr (std::is_floating_point_v<V>) {
    return a == b ? value : V(0);
  } else {
    return a == b ? value : V{};
  }
}

template <typename V>
inline V Larger(V a, V b) {
  return a > b ? a : b;
}

// Calls `body(c, V{})` for all channels, as vectors and then one by one.
template <typename T, typename Body>
inline void ForChannels(int64_t channels, Body body) {
  constexpr int lanes = Simd<T>::kLanes;
  int64_t c = 0;
  for (; c + lanes <= channels; c += lanes) body(c, Vector<T>{});
  for (; c < channels; ++c) body(c, T{});
}

// Runs `body(part)` for parts 0 .. parts - 1, in the calling thread and in threads of
// the pool that are idle. Busy threads are not waited for: whoever comes late finds no
// part left.
void ParallelFor(ffi::ThreadPool& pool, int64_t parts,
                 const std::function<void(int64_t)>& body) {
  int64_t helpers = std::min<int64_t>(pool.num_threads() - 1, parts - 1);
  if (helpers <= 0) {
    for (int64_t part = 0; part < parts; ++part) body(part);
    return;
  }
  struct Work {
    std::atomic<int64_t> next{0};
    int64_t parts;
    const std::function<void(int64_t)>* body;
    std::mutex mutex;
    std::condition_variable all_done;
    int64_t done = 0;
  };
  auto work = std::make_shared<Work>();
  work->parts = parts;
  work->body = &body;
  // `body` lives until all parts are done; a late thread takes no part of it.
  auto run = [work] {
    int64_t finished = 0;
    for (int64_t part; (part = work->next.fetch_add(1)) < work->parts; ++finished) {
      (*work->body)(part);
    }
    if (finished) {
      std::lock_guard<std::mutex> lock(work->mutex);
      work->done += finished;
      if (work->done == work->parts) work->all_done.notify_all();
    }
  };
  for (int64_t i = 0; i < helpers; ++i) pool.Schedule(std::function<void()>(run));
  run();
  std::unique_lock<std::mutex> lock(work->mutex);
  work->all_done.wait(lock, [&] { return work->done == work->parts; });
}

// The split of N images into parts, which must not depend on the number of threads.
constexpr int64_t kParts = 8;

struct Images {
  int64_t groups, number, height, width, channels;
  int64_t parts, per_part;

  explicit Images(ffi::Span<const int64_t> d)
      : groups(d[0]), number(d[1]), height(d[2]), width(d[3]), channels(d[4]) {
    bool small = number * height * width * channels < 1 << 16;
    parts = small ? 1 : std::max<int64_t>(1, std::min(number, kParts));
    per_part = (number + parts - 1) / parts;
  }
  int64_t row() const { return width * channels; }
  int64_t image() const { return height * row(); }
  int64_t pooled_row() const { return width / 2 * channels; }
  int64_t pooled_image() const { return height / 2 * pooled_row(); }
  double positions() const { return double(number) * height * width; }

  // Calls `body(group, n)` for the images of a part; parts are numbered over groups.
  template <typename Body>
  void ForPart(int64_t part, Body body) const {
    int64_t group = part / parts, first = part % parts * per_part;
    for (int64_t n = first; n < std::min(number, first + per_part); ++n) body(group, n);
  }
};

// Sums of two quantities per channel, one row of doubles for each part.
struct Sums {
  Sums(const Images& images)
      : channels(images.channels),
        values(images.groups * images.parts * 2 * images.channels) {}
  double* of(int64_t part, int which) {
    return values.data() + (part * 2 + which) * channels;
  }
  double total(const Images& images, int64_t group, int which, int64_t c) {
    double sum = 0;
    for (int64_t i = 0; i < images.parts; ++i) {
      sum += of(group * images.parts + i, which)[c];
    }
    return sum;
  }
  int64_t channels;
  std::vector<double> values;
};

template <typename T, typename V>
inline void AddTo(double* sum, V v) {
  if constexpr (std::is_same_v<V, T>) {
    *sum += v;
  } else {
    for (int i = 0; i < Simd<T>::kLanes; ++i) sum[i] += v[i];
  }
}

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

// Gradient of a 3x3 kernel: k[i, j, c, o] = sum over n, h, w of
// x[n, h + i, w + j, c] g[n, h, w, o], with x padded by one row and column on each side.
//
// Tiles of 3 columns j, some channels c and two vectors of filters o stay in registers
// while a block of rows runs by; a block is small enough to stay in the L1 cache for all
// tiles.

template <typename T, int kTile>
void AddTile(const T* x, const T* g, T* sums, int64_t first, int64_t last, int64_t height,
             int64_t width, int64_t channels, int64_t padded_filters) {
  using V = Vector<T>;
  constexpr int lanes = Simd<T>::kLanes;
  V sum[3][kTile][2];
  for (int j = 0; j < 3; ++j)
    for (int c = 0; c < kTile; ++c)
      for (int v = 0; v < 2; ++v)
        sum[j][c][v] = Load<V>(sums + ((j * kTile + c) * 2 + v) * lanes);
  const int64_t x_row = (width + 2) * channels, g_row = width * padded_filters;
  for (int64_t row = first; row < last; ++row) {
    // Every image has two rows of padding.
    const T* x_at = x + (row + row / height * 2) * x_row;
    const T* g_at = g + row * g_row;
    for (int64_t w = 0; w < width; ++w, x_at += channels, g_at += padded_filters) {
      const V g0 = Load<V>(g_at), g1 = Load<V>(g_at + lanes);
#pragma GCC unroll 3
      for (int j = 0; j < 3; ++j) {
#pragma GCC unroll 4
        for (int c = 0; c < kTile; ++c) {
          const T value = x_at[j * channels + c];
          sum[j][c][0] += value * g0;
          sum[j][c][1] += value * g1;
        }
      }
    }
  }
  for (int j = 0; j < 3; ++j)
    for (int c = 0; c < kTile; ++c)
      for (int v = 0; v < 2; ++v)
        Store(sums + ((j * kTile + c) * 2 + v) * lanes, sum[j][c][v]);
}

template <typename T>
void AddTileOf(int tile, const T* x, const T* g, T* sums, int64_t first, int64_t last,
               int64_t height, int64_t width, int64_t channels, int64_t padded_filters) {
  auto add = [&](auto size) {
    AddTile<T, decltype(size)::value>(x, g, sums, first, last, height, width, channels,
                                      padded_filters);
  };
  switch (tile) {
    case 1: return add(std::integral_constant<int, 1>());
    case 2: return add(std::integral_constant<int, 2>());
#if defined(__AVX512F__)
    case 3: return add(std::integral_constant<int, 3>());
    case 4: return add(std::integral_constant<int, 4>());
#endif
  }
}

constexpr int64_t kBlockBytes = 24 << 10;  // x and g of a block of rows

// One part of the images of one group; `out` is [3, 3, C, O].
template <typename T>
void KernelGradientPart(const T* x_in, const T* g_in, T* out, int64_t number,
                        int64_t height, int64_t width, int64_t channels,
                        int64_t filters) {
  constexpr int64_t block = 2 * Simd<T>::kLanes;
  const int64_t blocks = (filters + block - 1) / block;
  const int64_t padded_filters = blocks * block;
  // Layout of the sums: [block of filters][i][tile of channels][j][c][filter].
  const int64_t sums_per_row = 3 * channels * block;
  std::vector<T> sums(blocks * 3 * sums_per_row, T(0));

  const int64_t x_row = (width + 2) * channels, x_image = (height + 2) * x_row;
  const int64_t g_row = width * padded_filters;
  // Rows that are copied at a time, whole images of about 256 KiB.
  const int64_t image_bytes = (x_image + height * g_row) * int64_t(sizeof(T));
  const int64_t chunk =
      std::clamp<int64_t>((256 << 10) / image_bytes, 1, std::max<int64_t>(number, 1));
  // Zeros of the padding are written once.
  std::vector<T> x_copy(chunk * x_image, T(0));
  const bool copy_g = padded_filters != filters;
  std::vector<T> g_copy(copy_g ? chunk * height * g_row : 0, T(0));

  const int64_t row_bytes = (x_row + g_row) * int64_t(sizeof(T));
  const int64_t rows_a_block =
      std::max<int64_t>({1, kBlockBytes / row_bytes, (48 + width - 1) / width});

  for (int64_t start = 0; start < number; start += chunk) {
    const int64_t images = std::min(chunk, number - start);
    for (int64_t n = 0; n < images; ++n) {
      for (int64_t h = 0; h < height; ++h) {
        std::memcpy(x_copy.data() + n * x_image + (h + 1) * x_row + channels,
                    x_in + ((start + n) * height + h) * width * channels,
                    width * channels * sizeof(T));
      }
    }
    const T* g = g_in + start * height * width * filters;
    if (copy_g) {
      for (int64_t at = 0; at < images * height * width; ++at) {
        std::memcpy(g_copy.data() + at * padded_filters, g + at * filters,
                    filters * sizeof(T));
      }
      g = g_copy.data();
    }
    const int64_t rows = images * height;
    for (int64_t first = 0; first < rows; first += rows_a_block) {
      const int64_t last = std::min(rows, first + rows_a_block);
      for (int64_t b = 0; b < blocks; ++b) {
        for (int64_t i = 0; i < 3; ++i) {
          T* row_sums = sums.data() + (b * 3 + i) * sums_per_row;
          for (int64_t c = 0; c < channels; c += kChannelTile) {
            int tile = int(std::min<int64_t>(kChannelTile, channels - c));
            AddTileOf<T>(tile, x_copy.data() + i * x_row + c, g + b * block,
                         row_sums + 3 * c * block, first, last, height, width, channels,
                         padded_filters);
          }
        }
      }
    }
  }
  for (int64_t b = 0; b < blocks; ++b) {
    const int64_t width_of = std::min(block, filters - b * block);
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t tile_first = c / kChannelTile * kChannelTile;
        const int64_t tile = std::min<int64_t>(kChannelTile, channels - tile_first);
        for (int64_t j = 0; j < 3; ++j) {
          const T* from = sums.data() + (b * 3 + i) * sums_per_row +
                          (3 * tile_first + j * tile + c - tile_first) * block;
          std::copy_n(from, width_of,
                      out + ((i * 3 + j) * channels + c) * filters + b * block);
        }
      }
    }
  }
}

template <ffi::DataType kType>
ffi::Error KernelGradient(ffi::ThreadPool pool, ffi::Buffer<kType> x,
                          ffi::Buffer<kType> g, ffi::ResultBuffer<kType> out) {
  using T = ffi::NativeType<kType>;
  Images s(x.dimensions());
  const int64_t filters = g.dimensions()[4];
  const int64_t size = 9 * s.channels * filters;
  // Few parts: each has its own sums.
  const int64_t parts = std::min<int64_t>(s.parts, 4);
  const int64_t per_part = (s.number + parts - 1) / parts;
  std::vector<T> sums(parts > 1 ? s.groups * parts * size : 0);
  T* total = out->typed_data();
  T* partial = parts > 1 ? sums.data() : total;
  ParallelFor(pool, s.groups * parts, [&](int64_t part) {
    const int64_t group = part / parts;
    const int64_t first = std::min(s.number, part % parts * per_part);
    const int64_t number = std::min(per_part, s.number - first);
    const int64_t at = (group * s.number + first) * s.height * s.width;
    KernelGradientPart<T>(x.typed_data() + at * s.channels, g.typed_data() + at * filters,
                          partial + part * size, number, s.height, s.width, s.channels,
                          filters);
  });
  if (parts > 1) {
    for (int64_t group = 0; group < s.groups; ++group) {
      for (int64_t k = 0; k < size; ++k) {
        T sum = 0;
        for (int64_t i = 0; i < parts; ++i) sum += sums[(group * parts + i) * size + k];
        total[group * size + k] = sum;
      }
    }
  }
  return ffi::Error::Success();
}

}  // namespace

#define MLTI_KERNEL(name, function, type, arguments, results)            \
  XLA_FFI_DEFINE_HANDLER_SYMBOL(                                         \
      name, function<ffi::type>,                                         \
      ffi::Ffi::Bind().Ctx<ffi::ThreadPool>() arguments(type) results(type))

#define MLTI_ARG(type) .Arg<ffi::Buffer<ffi::type>>()
#define MLTI_RET(type) .Ret<ffi::Buffer<ffi::type>>()
#define MLTI_ARGS_2(type) MLTI_ARG(type) MLTI_ARG(type)
#define MLTI_ARGS_4(type) MLTI_ARGS_2(type) MLTI_ARGS_2(type)
#define MLTI_ARGS_6(type) MLTI_ARGS_4(type) MLTI_ARGS_2(type)
#define MLTI_RETS_1(type) MLTI_RET(type)
#define MLTI_RETS_3(type) MLTI_RET(type) MLTI_RET(type) MLTI_RET(type)

MLTI_KERNEL(PoolMomentsF32, PoolMoments, F32, MLTI_ARGS_2, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsF64, PoolMoments, F64, MLTI_ARGS_2, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsTangentF32, PoolMomentsTangent, F32, MLTI_ARGS_4, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsTangentF64, PoolMomentsTangent, F64, MLTI_ARGS_4, MLTI_RETS_3);
MLTI_KERNEL(PoolMomentsCotangentF32, PoolMomentsCotangent, F32, MLTI_ARGS_6, MLTI_RETS_1);
MLTI_KERNEL(PoolMomentsCotangentF64, PoolMomentsCotangent, F64, MLTI_ARGS_6, MLTI_RETS_1);
MLTI_KERNEL(KernelGradientF32, KernelGradient, F32, MLTI_ARGS_2, MLTI_RETS_1);
MLTI_KERNEL(KernelGradientF64, KernelGradient, F64, MLTI_ARGS_2, MLTI_RETS_1);
