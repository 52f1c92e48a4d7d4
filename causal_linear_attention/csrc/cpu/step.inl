// The decoding step of one head (see kernels.h). Included inside a namespace of the instruction set.

// x times the decay; what a decay of 0 hides may be a NaN.
template <bool kDecayed, class T, class X>
CLA_INLINE X decayed(const X& x, T decay) {
  if constexpr (!kDecayed) return x;
  return decay == 0 ? X{} : x * decay;
}

// Columns [x, x + V vectors) of the new state and of the output before its division.
template <class T, int V, class In, bool kDecayed>
CLA_INLINE void step_columns(const Step& s, T decay, int64_t columns, int64_t x, const T* values, T* totals) {
  const In *q = static_cast<const In*>(s.q), *k = static_cast<const In*>(s.k);
  const T* from = static_cast<const T*>(s.state) + x;
  T* to = static_cast<T*>(s.state_out) + x;
  Vector<T> value[V], total[V];
#pragma GCC unroll 4
  for (int y = 0; y < V; ++y) {
    value[y] = load(values + y * kLanes<T>);
    total[y] = Vector<T>{};
  }
  for (int64_t e = 0; e < s.depth; ++e, from += columns, to += columns) {
    const Vector<T> key = broadcast(static_cast<T>(widen(k[e])));
    const Vector<T> query = broadcast(static_cast<T>(widen(q[e])));
#pragma GCC unroll 4
    for (int y = 0; y < V; ++y) {
      const Vector<T> state = decayed<kDecayed>(load(from + y * kLanes<T>), decay) + key * value[y];
      store(to + y * kLanes<T>, state);
      total[y] += query * state;
    }
  }
#pragma GCC unroll 4
  for (int y = 0; y < V; ++y) store(totals + y * kLanes<T>, total[y]);
}

template <class T, class In, bool kDecayed>
CLA_INLINE void run_step(const Step& s) {
  const T decay = kDecayed ? *static_cast<const T*>(s.decay) : T(1);
  const In *q = static_cast<const In*>(s.q), *k = static_cast<const In*>(s.k);
  const In* const v = static_cast<const In*>(s.v);
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
    }
    int64_t x = 0;
    for (; x + 4 * kLanes<T> <= count; x += 4 * kLanes<T>) {
      step_columns<T, 4, In, kDecayed>(s, decay, columns, begin + x, values + x, totals + x);
    }
    for (; x + kLanes<T> <= count; x += kLanes<T>) {
      step_columns<T, 1, In, kDecayed>(s, decay, columns, begin + x, values + x, totals + x);
    }
    for (; x < count; ++x) {
      const T* from = static_cast<const T*>(s.state) + begin + x;
      T* to = static_cast<T*>(s.state_out) + begin + x;
      T total = 0;
      for (int64_t e = 0; e < s.depth; ++e, from += columns, to += columns) {
        *to = decayed<kDecayed>(*from, decay) + static_cast<T>(widen(k[e])) * values[x];
        total += static_cast<T>(widen(q[e])) * *to;
      }
      totals[x] = total;
    }
    if (s.normalize && end == columns) denominator = totals[count - 1] + static_cast<T>(s.eps);
    for (x = 0; x < count; ++x) {
      if (begin + x < s.width) {
        const T total = s.normalize ? totals[x] / denominator : totals[x];
        narrow(total * static_cast<T>(s.scale), static_cast<In*>(s.out) + begin + x);
      }
    }
  }
}

template <class T, class In>
CLA_INLINE void step_as(const Step& s) {
  s.decay == nullptr ? run_step<T, In, false>(s) : run_step<T, In, true>(s);
}

void step_f32(const Step& s) {
  if (s.dtype == Dtype::f32) return step_as<float, float>(s);
  if (s.dtype == Dtype::bf16) return step_as<float, bf16>(s);
  return step_as<float, f16>(s);
}
void step_f64(const Step& s) { step_as<double, double>(s); }
