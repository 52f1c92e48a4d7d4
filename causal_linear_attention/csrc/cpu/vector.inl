// Vectors of the instruction set a file is compiled for, in the compiler's own vector types.
// Included inside a namespace of that instruction set: nothing here may be shared between files that are
// compiled with different flags, so no function of the standard library is used either.

#define CLA_INLINE inline __attribute__((always_inline))
// One copy for all callers, where a call costs nothing beside the work: each copy takes seconds to compile.
#define CLA_SHARED __attribute__((noinline))

template <class T>
struct VectorOf {
  typedef T type __attribute__((vector_size(CLA_VECTOR_BYTES)));
  typedef T loose __attribute__((vector_size(CLA_VECTOR_BYTES), aligned(sizeof(T)), may_alias));
};
template <class T>
using Vector = typename VectorOf<T>::type;
template <class T>
constexpr int kLanes = CLA_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <class T>
CLA_INLINE Vector<T> load(const T* p) {
  return *reinterpret_cast<const typename VectorOf<T>::loose*>(p);
}
template <class T>
CLA_INLINE void store(T* p, Vector<T> x) {
  *reinterpret_cast<typename VectorOf<T>::loose*>(p) = x;
}
template <class T>
CLA_INLINE Vector<T> broadcast(T x) {
  return x - Vector<T>{};
}
template <class T>
CLA_INLINE T sum(Vector<T> x) {
  T total = 0;
  for (int i = 0; i < kLanes<T>; ++i) total += x[i];
  return total;
}

template <class T>
CLA_INLINE void stream(T* p, Vector<T> x) {
#if CLA_VECTOR_BYTES == 64 && defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(p), (__m512i)x);
#elif CLA_VECTOR_BYTES == 32 && defined(__AVX__)
  _mm256_stream_si256(reinterpret_cast<__m256i*>(p), (__m256i)x);
#else
  store(p, x);
#endif
}
CLA_INLINE void stream_fence() {
#if defined(__SSE__)
  _mm_sfence();
#endif
}

// --- conversions -------------------------------------------------------------------------------------

CLA_INLINE float bits_to_float(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
CLA_INLINE uint32_t float_to_bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  return bits;
}

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

CLA_INLINE float widen(bf16 x) { return bits_to_float(static_cast<uint32_t>(x.bits) << 16); }
CLA_INLINE float widen(float x) { return x; }
CLA_INLINE double widen(double x) { return x; }
CLA_INLINE float widen(f16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16, low = x.bits & 0x7fffu;
  // Rebias by a multiplication, which also normalises subnormal numbers; infinity and NaN apart.
  const float magnitude = bits_to_float(low << 13) * bits_to_float(0x77800000u);
  const uint32_t special = 0x7f800000u | (low << 13);
  return bits_to_float(sign | (low >= 0x7c00u ? special : float_to_bits(magnitude)));
}

CLA_INLINE void narrow(float x, float* to) { *to = x; }
CLA_INLINE void narrow(double x, double* to) { *to = x; }
CLA_INLINE void narrow(float x, bf16* to) {
  const uint32_t bits = float_to_bits(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;
  to->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}
CLA_INLINE void narrow(float x, f16* to) {
  const uint32_t bits = float_to_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
  uint32_t result;
  if (magnitude > 0x7f800000u) {
    result = 0x7e00u;
  } else if (magnitude >= 0x477ff000u) {  // rounds to 65536 or more
    result = 0x7c00u;
  } else if (magnitude < 0x38800000u) {  // below the smallest normal number: let the adder round
    result = float_to_bits(bits_to_float(magnitude) + 0.5f) - 0x3f000000u;
  } else {
    result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  }
  to->bits = static_cast<uint16_t>(sign | result);
}

// One row, converted; the compiler vectorises these loops, f16 has instructions of its own.
template <class In, class T>
CLA_INLINE void widen_row(const In* from, T* to, int64_t count) {
  for (int64_t x = 0; x < count; ++x) to[x] = static_cast<T>(widen(from[x]));
}
template <class Out, class T>
CLA_INLINE void narrow_row(const T* from, Out* to, int64_t count) {
  for (int64_t x = 0; x < count; ++x) narrow(from[x], to + x);
}
#if defined(__F16C__)
CLA_INLINE void widen_row(const f16* from, float* to, int64_t count) {
  int64_t x = 0;
  for (; x + 8 <= count; x += 8) {
    _mm256_storeu_ps(to + x, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + x))));
  }
  for (; x < count; ++x) to[x] = widen(from[x]);
}
CLA_INLINE void narrow_row(const float* from, f16* to, int64_t count) {
  int64_t x = 0;
  for (; x + 8 <= count; x += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + x),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + x), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; x < count; ++x) narrow(from[x], to + x);
}
#endif

// --- transposition -----------------------------------------------------------------------------------

template <int... I>
struct Lanes {};
template <int N, int... I>
struct CountLanes : CountLanes<N - 1, N - 1, I...> {};
template <int... I>
struct CountLanes<0, I...> {
  using type = Lanes<I...>;
};

// Lanes I of x and y, those of y counted from kLanes on.
template <class T, int... I>
CLA_INLINE Vector<T> shuffle(Vector<T> x, Vector<T> y) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(x, y, I...);
#else  // GCC before 12
  return __builtin_shuffle(x, y, decltype(x < y){I...});
#endif
}

// The lower and upper half of a butterfly of distance H between the rows x and y.
template <class T, int H, int... I>
CLA_INLINE void exchange(Vector<T>& x, Vector<T>& y, Lanes<I...>) {
  constexpr int L = kLanes<T>;
  const Vector<T> low = shuffle<T, ((I & H) ? L + I - H : I)...>(x, y);
  const Vector<T> high = shuffle<T, ((I & H) ? L + I : I + H)...>(x, y);
  x = low;
  y = high;
}

template <class T, int H>
CLA_INLINE void butterfly(Vector<T> (&r)[kLanes<T>]) {
  if constexpr (H > 0) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes<T>; ++i) {
      if (!(i & H)) exchange<T, H>(r[i], r[i + H], typename CountLanes<kLanes<T>>::type{});
    }
    butterfly<T, H / 2>(r);
  }
}

// to[y * to_stride + x] = from[x * from_stride + y] for a square of vectors.
template <class T>
CLA_INLINE void transpose_square(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  Vector<T> r[kLanes<T>];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) r[i] = load(from + i * from_stride);
  butterfly<T, kLanes<T> / 2>(r);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes<T>; ++i) store(to + i * to_stride, r[i]);
}
