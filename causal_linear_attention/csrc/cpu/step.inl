// The decoding step of one head (see kernels.h). Included inside a namespace of the instruction set.

template <class T, class In>
CLA_INLINE void step_as(const Step& s) {
  const In *q = static_cast<const In*>(s.q), *k = static_cast<const In*>(s.k);
  const In* v = static_cast<const In*>(s.v);
  const int64_t columns = s.width + s.normalize;
  constexpr int64_t kBlock = 256;
  T values[kBlock], totals[kBlock];
  T denominator = 1;
  // From the last block to the first, so that the denominator is known when outputs are written.
  for (int64_t end = columns, begin; end > 0; end = begin) {
    begin = end > kBlock ? round_up(end - kBlock, kBlock) : 0;
    const int64_t count = end - begin;
    for (int64_t x = 0; x < count; ++x) {
      values[x] = begin + x < s.width ? static_cast<T>(widen(v[begin + x])) : T(1);
      totals[x] = 0;
    }
    for (int64_t e = 0; e < s.depth; ++e) {
      const T key = widen(k[e]), query = widen(q[e]);
      const T* const from = static_cast<const T*>(s.state) + e * columns + begin;
      T* const to = static_cast<T*>(s.state_out) + e * columns + begin;
      for (int64_t x = 0; x < count; ++x) {
        const T value = from[x] + key * values[x];
        to[x] = value;
        totals[x] += query * value;
      }
    }
    if (s.normalize && end == columns) denominator = totals[count - 1] + static_cast<T>(s.eps);
    for (int64_t x = 0; x < count; ++x) {
      if (begin + x < s.width) {
        narrow(s.normalize ? totals[x] / denominator : totals[x], static_cast<In*>(s.out) + begin + x);
      }
    }
  }
}

void step_f32(const Step& s) {
  if (s.dtype == Dtype::f32) return step_as<float, float>(s);
  if (s.dtype == Dtype::bf16) return step_as<float, bf16>(s);
  return step_as<float, f16>(s);
}
void step_f64(const Step& s) { step_as<double, double>(s); }
