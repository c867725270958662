// Elementary functions of vectors, accurate to a few units in the last place.

#pragma once

#include "common.h"

namespace {

template <typename T>
struct Bits;
template <>
struct Bits<float> {
  typedef int32_t Vector __attribute__((vector_size(kVectorBytes)));
  static constexpr int kMantissa = 23;
  static constexpr int kExpTerms = 8, kLogTerms = 7;  // of series, for the accuracy
  static constexpr float kRound = 12582912.0f;        // 1.5 * 2^23
  static constexpr float kLowestExp = -87.0f;         // no subnormal result
  static constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
};
template <>
struct Bits<double> {
  typedef int64_t Vector __attribute__((vector_size(kVectorBytes)));
  static constexpr int kMantissa = 52;
  static constexpr int kExpTerms = 14, kLogTerms = 17;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr double kLowestExp = -708.0;
  static constexpr double kLn2High = 6.93145751953125e-1;
  static constexpr double kLn2Low = 1.42860682030941723212e-6;
};

template <typename T>
inline typename Bits<T>::Vector AsBits(Vector<T> v) {
  return (typename Bits<T>::Vector)v;
}

// e^x for x <= 0; NaN stays NaN.
template <typename T>
inline Vector<T> ExpOfNegative(Vector<T> x) {
  using B = Bits<T>;
  using V = Vector<T>;
  const V lowest = V{} + B::kLowestExp;
  x = x < lowest ? lowest : x;
  // x = n ln 2 + r, where the lowest bits of `shifted` are those of n.
  const V shifted = x * T(1.44269504088896340736) + B::kRound;
  const V n = shifted - B::kRound;
  const V r = (x - n * B::kLn2High) - n * B::kLn2Low;
  double inverse[B::kExpTerms] = {1};  // 1 / k!
  for (int k = 1; k < B::kExpTerms; ++k) inverse[k] = inverse[k - 1] / k;
  V sum = V{} + T(inverse[B::kExpTerms - 1]);
#pragma GCC unroll 16
  for (int k = B::kExpTerms - 2; k >= 0; --k) sum = sum * r + T(inverse[k]);
  const V power = (V)((AsBits<T>(shifted) << B::kMantissa) + AsBits<T>(V{} + T(1)));
  return sum * power;
}

// 2 artanh(s) = 2 (s + s^3 / 3 + s^5 / 5 + ...).
template <typename T, int kTerms>
inline Vector<T> TwiceArtanh(Vector<T> s) {
  const Vector<T> square = s * s;
  Vector<T> sum = Vector<T>{} + T(2.0 / (2 * kTerms - 1));
#pragma GCC unroll 20
  for (int k = kTerms - 1; k > 0; --k) sum = sum * square + T(2.0 / (2 * k - 1));
  return s * sum;
}

// softplus(z) = ln(1 + e^z) and its derivative, with e = e^-|z|:
// max(z, 0) + ln(1 + e) and (1 or e) / (1 + e).
template <typename T>
inline void Softplus(Vector<T> z, Vector<T>& value, Vector<T>& slope) {
  using V = Vector<T>;
  const V zero{}, one = zero + T(1);
  const V e = ExpOfNegative<T>(z > zero ? -z : z);
  // ln(1 + e) = 2 artanh(e / (2 + e)); one division for both.
  const V inverse = one / ((T(1) + e) * (T(2) + e));
  value = (z < zero ? zero : z) +
          TwiceArtanh<T, Bits<T>::kLogTerms>(e * (T(1) + e) * inverse);
  slope = (z > zero ? one : e) * ((T(2) + e) * inverse);
}

}  // namespace
