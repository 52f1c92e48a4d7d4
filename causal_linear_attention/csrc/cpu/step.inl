// The decoding step of one head (see kernels.h). Included inside a namespace of the instruction set.

// How a state becomes the one that q multiplies.
enum class Change { none, added, decayed };

// What a decay of 0 hides may be a NaN.
template <Change kChange, class T, class X>
CLA_INLINE X changed(const X& state, T decay, const X& key, const X& value) {
  if constexpr (kChange == Change::none) return state;
  if constexpr (kChange == Change::added) return state + key * value;
  return (decay == 0 ? X{} : state * decay) + key * value;
}

// Columns [x, x + V vectors) of the new state and of the output before its division.
template <class T, int V, class In, Change kChange>
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
      const Vector<T> state = changed<kChange>(load(from + y * kLanes<T>), decay, key, value[y]);
      if constexpr (kChange != Change::none) store(to + y * kLanes<T>, state);
      total[y] += query * state;
    }
  }
#pragma GCC unroll 4
  for (int y = 0; y < V; ++y) store(totals + y * kLanes<T>, total[y]);
}

template <class T, class In, Change kChange>
CLA_INLINE void run_step(const Step& s) {
  const T decay = kChange == Change::decayed ? *static_cast<const T*>(s.decay) : T(1);
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
      step_columns<T, 4, In, kChange>(s, decay, columns, begin + x, values + x, totals + x);
    }
    for (; x + kLanes<T> <= count; x += kLanes<T>) {
      step_columns<T, 1, In, kChange>(s, decay, columns, begin + x, values + x, totals + x);
    }
    for (; x < count; ++x) {
      const T* from = static_cast<const T*>(s.state) + begin + x;
      T* to = static_cast<T*>(s.state_out) + begin + x;
      T total = 0;
      for (int64_t e = 0; e < s.depth; ++e, from += columns, to += columns) {
        const T state = changed<kChange>(*from, decay, static_cast<T>(widen(k[e])), values[x]);
        if constexpr (kChange != Change::none) *to = state;
        total += static_cast<T>(widen(q[e])) * state;
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
  if (s.held) return run_step<T, In, Change::none>(s);
  s.decay == nullptr ? run_step<T, In, Change::added>(s) : run_step<T, In, Change::decayed>(s);
}

void step_f32(const Step& s) {
  if (s.dtype == Dtype::f32) return step_as<float, float>(s);
  if (s.dtype == Dtype::bf16) return step_as<float, bf16>(s);
  return step_as<float, f16>(s);
}
void step_f64(const Step& s) { step_as<double, double>(s); }
