// The decays of one chunk (see kernels.h). A chunk ends before a row whose decay is 0, at which the state is cleared
// instead: nothing from before such a row is multiplied, not even by zero.
// Included inside a namespace of the instruction set, after tiles.inl.

// Nothing, unless kDecayed.
template <class T, bool kDecayed>
struct Decays {
  CLA_INLINE explicit Decays(const Segment&) {}
  CLA_INLINE int64_t count(int64_t, int64_t count) const { return count; }
  CLA_INLINE bool of(int64_t, int64_t) { return false; }
  static constexpr const T* within = nullptr;
};

template <class T>
constexpr Dtype kDtype = sizeof(T) == 8 ? Dtype::f64 : Dtype::f32;

template <class T>
struct Decays<T, true> {
  alignas(64) T within[kChunk * kChunk];  // L
  alignas(64) T since_start[kChunk];      // L's rows from before the chunk
  alignas(64) T to_end[kChunk];           // L's last row
  T total = 1;                            // of the whole chunk
  int64_t known = 0;                      // the rows that `within` is right for, if all decays are one

  CLA_INLINE explicit Decays(const Segment& segment) : s(segment) {
    for (int64_t i = 0; i < kChunk * kChunk; ++i) within[i] = 0;
  }

  CLA_INLINE T at(int64_t row) const {
    return s.shifted && row == 0 ? T(1) : static_cast<const T*>(s.decay)[row * s.decay_stride];
  }

  // How many rows from `first` on make a chunk, of at most `most`.
  CLA_INLINE int64_t count(int64_t first, int64_t most) const {
    if (s.kept != nullptr) {
      const int64_t gone = (s.shifted ? s.rows - first : first) % kBlockRows;
      const int64_t left = s.shifted && gone > 0 ? gone : kBlockRows - (s.shifted ? 0 : gone);
      if (left < most) most = left;
    }
    for (int64_t i = 1; i < most; ++i) {
      if (at(first + i) == 0) return i;
    }
    return most;
  }

  // Whether the state must be cleared before the chunk.
  CLA_INLINE bool of(int64_t first, int64_t count) {
    constexpr int V = static_cast<int>(kChunk) / kLanes<T>;
    const T entering = at(first);
    const bool clears = entering == 0;
    T product = clears ? T(1) : entering;
    since_start[0] = product;
    for (int64_t i = 1; i < count; ++i) since_start[i] = product = product * at(first + i);
    for (int64_t i = count; i < kChunk; ++i) since_start[i] = 0;
    total = product;
    const bool same = s.decay_stride == 0 && known == count;
    if (same) return clears;
    Vector<T> row[V];
    for (int x = 0; x < V; ++x) row[x] = Vector<T>{};
    for (int64_t i = 0; i < count; ++i) {
      const Vector<T> factor = broadcast(i == 0 ? T(0) : at(first + i));
      alignas(64) static constexpr Diagonal one{};
      for (int x = 0; x < V; ++x) {
        row[x] = factor * row[x] + load(one.rows + i * kChunk + x * kLanes<T>);
        store(within + i * kChunk + x * kLanes<T>, row[x]);
      }
    }
    for (int x = 0; x < V; ++x) store(to_end + x * kLanes<T>, row[x]);
    known = count;
    return clears;
  }

 private:
  struct Diagonal {
    T rows[kChunk * kChunk] = {};
    constexpr Diagonal() {
      for (int64_t i = 0; i < kChunk; ++i) rows[i * kChunk + i] = 1;
    }
  };
  const Segment& s;
};
