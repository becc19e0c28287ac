#pragma once
// The device's kernel, in plain C++: a vendor's own launch stands here.

#include <array>
#include <cstdint>

namespace example {

// out [rows, columns] = x [rows, inner] times weight [columns, inner] transposed, float32. A product is sixteen partial
// sums, which a compiler keeps in vector registers, added by halves: a row's bits depend on that row alone.
inline void matmul(const float* x, const float* weight, float* out, int64_t rows, int64_t columns, int64_t inner) {
  constexpr int64_t kLanes = 16;
  for (int64_t n = 0; n < columns; ++n)
    for (int64_t t = 0; t < rows; ++t) {
      std::array<float, kLanes> sums{};
      const float *p = x + t * inner, *q = weight + n * inner;
      const int64_t whole = inner / kLanes * kLanes;
      for (int64_t k = 0; k < whole; k += kLanes)
        for (int64_t i = 0; i < kLanes; ++i) sums[i] += p[k + i] * q[k + i];
      for (int64_t k = whole; k < inner; ++k) sums[k - whole] += p[k] * q[k];
      for (int64_t width = kLanes / 2; width; width /= 2)
        for (int64_t i = 0; i < width; ++i) sums[i] += sums[i + width];
      out[t * columns + n] = sums[0];
    }
}

}  // namespace example
