// Normal noise, the same as `jax.random.normal` with a key of threefry2x32 (Salmon et
// al., 2011), whose CPU form writes intermediate results to memory five times.

#pragma once

#include "elementary.h"
#include "panels.h"

namespace {

typedef uint32_t Words __attribute__((vector_size(kVectorBytes)));
constexpr int kLanes32 = kVectorBytes / 4;
constexpr int kAtOnce = 4;  // independent vectors, to hide latencies

// 32 random bits for each of the counts, which are the lower words of 64.
inline void Threefry(uint32_t key0, uint32_t key1, Words x[kAtOnce]) {
  const uint32_t keys[3] = {key0, key1, key0 ^ key1 ^ 0x1BD11BDAu};
  constexpr int rotations[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
  Words high[kAtOnce];
  for (int v = 0; v < kAtOnce; ++v) {
    high[v] = Words{} + keys[0];
    x[v] += keys[1];
  }
#pragma GCC unroll 5
  for (int i = 0; i < 5; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int by = rotations[i % 2][j];
#pragma GCC unroll 4
      for (int v = 0; v < kAtOnce; ++v) {
        high[v] += x[v];
        x[v] = ((x[v] << by) | (x[v] >> (32 - by))) ^ high[v];
      }
    }
    for (int v = 0; v < kAtOnce; ++v) {
      high[v] += keys[(i + 1) % 3];
      x[v] += keys[(i + 2) % 3] + uint32_t(i + 1);
    }
  }
  for (int v = 0; v < kAtOnce; ++v) x[v] ^= high[v];
}

// ln x for 0 < x <= 1.
inline Vector<float> Log(Vector<float> x) {
  using B = Bits<float>;
  // x = 2^n m with m in [sqrt(1/2), sqrt(2)).
  const B::Vector bits = AsBits<float>(x);
  const B::Vector n = (bits - 0x3F3504F3) >> B::kMantissa;
  const Vector<float> m = (Vector<float>)(bits - (n << B::kMantissa));
  return __builtin_convertvector(n, Vector<float>) * 0.693147180559945f +
         TwiceArtanh<float, 5>((m - 1.0f) / (m + 1.0f));
}

inline Vector<float> SquareRoot(Vector<float> x) {
  // Newton's method for 1 / sqrt(x).
  Vector<float> root = (Vector<float>)(0x5F375A86 - (AsBits<float>(x) >> 1));
  for (int i = 0; i < 3; ++i) root *= 1.5f - 0.5f * x * root * root;
  return x * root;
}

template <int kTerms>
inline Vector<float> Polynomial(const float (&coefficients)[kTerms], Vector<float> x) {
  Vector<float> sum = Vector<float>{} + coefficients[0];
#pragma GCC unroll 16
  for (int k = 1; k < kTerms; ++k) sum = sum * x + coefficients[k];
  return sum;
}

// sqrt(2) times the inverse of the error function of u (Giles, 2010), as in XLA.
inline void NormalQuantile(Vector<float> u[kAtOnce]) {
  using V = Vector<float>;
  constexpr float center[9] = {2.81022636e-08f,  3.43273939e-07f, -3.5233877e-06f,
                               -4.39150654e-06f, 0.00021858087f,  -0.00125372503f,
                               -0.00417768164f,  0.246640727f,    1.50140941f};
  constexpr float tail[9] = {-0.000200214257f, 0.000100950558f, 0.00134934322f,
                             -0.00367342844f,  0.00573950773f,  -0.0076224613f,
                             0.00943887047f,   1.00167406f,     2.83297682f};
  constexpr float root_two = 1.41421356237f, start_of_tail = 5.0f;
  V w[kAtOnce], factor[kAtOnce], largest{};
  for (int v = 0; v < kAtOnce; ++v) {
    w[v] = -Log((1.0f - u[v]) * (1.0f + u[v]));
    factor[v] = Polynomial(center, w[v] - 2.5f);
    largest = w[v] > largest ? w[v] : largest;
  }
  bool any = false;
  for (int i = 0; i < kLanes32; ++i) any |= largest[i] >= start_of_tail;
  if (any) {  // one number of 300
    for (int v = 0; v < kAtOnce; ++v)
      factor[v] = w[v] >= start_of_tail ? Polynomial(tail, SquareRoot(w[v]) - 3.0f)
                                        : factor[v];
  }
  for (int v = 0; v < kAtOnce; ++v) u[v] *= factor[v] * root_two;
}

// Normal numbers [G, size] for keys [G, 2], the positions of which are the counts.
ffi::Error Normal(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> keys_in,
                  ffi::ResultBuffer<ffi::F32> out) {
  const int64_t groups = keys_in.dimensions()[0];
  const int64_t size = out->element_count() / groups;
  constexpr int64_t step = kAtOnce * kLanes32, part_size = 256 * step;
  const int64_t parts = Ceil(size, part_size);
  Words lanes;
  for (int i = 0; i < kLanes32; ++i) lanes[i] = i;
  ParallelFor(pool, groups * parts, [&](int64_t part) {
    const int64_t group = part / parts, first = part % parts * part_size;
    const uint32_t* key = keys_in.typed_data() + 2 * group;
    float* to = out->typed_data() + group * size;
    for (int64_t at = first; at < std::min(size, first + part_size); at += step) {
      Words bits[kAtOnce];
      for (int v = 0; v < kAtOnce; ++v) bits[v] = lanes + uint32_t(at + v * kLanes32);
      Threefry(key[0], key[1], bits);
      Vector<float> u[kAtOnce];
      for (int v = 0; v < kAtOnce; ++v) {
        // 23 bits as a number from 1 to 2, then from -1 to 1.
        constexpr float lowest = -0.99999994f;
        u[v] = (Vector<float>)((bits[v] >> 9) | 0x3F800000u) - 1.0f;
        u[v] = u[v] * 2.0f + lowest;
      }
      NormalQuantile(u);
      for (int v = 0; v < kAtOnce; ++v) {
        const int64_t from = at + v * kLanes32;
        StoreFirst<float>(to + from, u[v], size - from);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace
