// Vectors, threads and the division of images into parts.
//
// Shapes: x and y [G, N, H, W, C], images of G groups (tasks); everything per channel is
// [G, C]. Results do not depend on the number of threads.

#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
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

// NaN if one of them is.
template <typename V>
inline V Larger(V a, V b) {
  return ((a > b) | (a != a)) ? a : b;
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
// the pool that are idle. Busy threads are not waited for: a helper that starts after all
// parts are taken returns at once, and does not use `body`.
void ParallelFor(ffi::ThreadPool& pool, int64_t parts,
                 const std::function<void(int64_t)>& body) noexcept {
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

  explicit Images(ffi::Span<const int64_t> d) : Images(d, d[4]) {}
  Images(ffi::Span<const int64_t> d, int64_t channels)
      : groups(d[0]), number(d[1]), height(d[2]), width(d[3]), channels(channels) {
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

// Computes `size` sums over the images of each group. `add(first, number, sums)` writes
// those of `number` images from position `first` of the arrays on. Few parts: each has
// its own sums, which are added in order.
template <typename T, typename Add>
void SumOverParts(ffi::ThreadPool& pool, const Images& s, int64_t parts, int64_t size,
                  T* total, Add add) {
  const int64_t per_part = (s.number + parts - 1) / parts;
  std::vector<T> sums(parts > 1 ? s.groups * parts * size : 0);
  T* partial = parts > 1 ? sums.data() : total;
  ParallelFor(pool, s.groups * parts, [&](int64_t part) {
    const int64_t group = part / parts;
    const int64_t first = std::min(s.number, part % parts * per_part);
    const int64_t number = std::min(per_part, s.number - first);
    T* sums_of_part = partial + part * size;
    if (number) {
      add((group * s.number + first) * s.height * s.width, number, sums_of_part);
    } else {
      std::fill_n(sums_of_part, size, T(0));
    }
  });
  if (parts == 1) return;
  for (int64_t group = 0; group < s.groups; ++group) {
    for (int64_t k = 0; k < size; ++k) {
      T sum = 0;
      for (int64_t i = 0; i < parts; ++i) sum += sums[(group * parts + i) * size + k];
      total[group * size + k] = sum;
    }
  }
}

}  // namespace
