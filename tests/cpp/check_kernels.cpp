// The CPU kernels without torch, for the sanitizers: every instruction set of this machine, odd shapes,
// several threads, arrays that end where the last row ends. Prints what is wrong; exit code 1 if anything is.
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "decoding.h"
#include "forward_backward.h"

namespace {

struct Shape {
  int64_t batch, heads, rows, depth, width;  // heads of k
  int64_t group = 1;                         // heads of q that share one of k
};

template <class T>
struct Case {
  Shape s;
  bool normalize, state;
  std::vector<T> q, k, v, initial, grad_out, grad_state;
  std::vector<T> log_decay, decay;  // empty without decays

  static std::vector<T> draw(int64_t count, std::mt19937& random) {
    std::uniform_real_distribution<double> uniform(0.1, 1.0);
    std::vector<T> numbers(static_cast<size_t>(count));
    for (T& x : numbers) x = static_cast<T>(uniform(random));
    return numbers;
  }
  int64_t heads() const { return s.batch * s.heads; }
  int64_t queries() const { return heads() * s.group; }
  int64_t state_size() const { return heads() * s.depth * (s.width + normalize); }

  Case(Shape shape, bool with_normalizer, bool with_state, std::mt19937& random)
      : s(shape), normalize(with_normalizer), state(with_state) {
    q = draw(queries() * s.rows * s.depth, random);
    k = draw(heads() * s.rows * s.depth, random);
    v = draw(heads() * s.rows * s.width, random);
    grad_out = draw(queries() * s.rows * s.width, random);
    initial = draw(state_size(), random);
    grad_state = draw(state_size(), random);
  }

  // A number per row; at row 9 of a head a sequence begins.
  void draw_decays(std::mt19937& random) {
    log_decay = draw(heads() * s.rows, random);
    for (size_t i = 0; i < log_decay.size(); ++i) {
      const bool begins = static_cast<int64_t>(i) % s.rows == 9;
      log_decay[i] = begins ? -std::numeric_limits<T>::infinity() : T(-0.3) * log_decay[i];
      decay.push_back(std::exp(log_decay[i]));
    }
  }

  // Rows of the heads of q, and of those of k.
  cla::Array of_q(const std::vector<T>& x, int64_t columns) const {
    return {const_cast<T*>(x.data()), s.heads * s.group * s.rows * columns, s.rows * columns, columns};
  }
  cla::Array of_k(const std::vector<T>& x, int64_t columns) const {
    return {const_cast<T*>(x.data()), s.heads * s.rows * columns, s.rows * columns, columns, s.group};
  }
  cla::Problem problem() const {
    cla::Problem p;
    p.batch = s.batch;
    p.heads = s.heads * s.group;
    p.rows = s.rows;
    p.depth = s.depth;
    p.width = s.width;
    p.dtype = sizeof(T) == 8 ? cla::Dtype::f64 : cla::Dtype::f32;
    p.normalize = normalize;
    p.eps = 1e-6;
    p.q = of_q(q, s.depth);
    p.k = of_k(k, s.depth);
    p.v = of_k(v, s.width);
    p.state = state ? initial.data() : nullptr;
    if (!decay.empty()) p.decay = of_k(decay, 1);
    return p;
  }
};

void run_threads(int64_t count, void (*body)(int64_t, int64_t, void*), void* context) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) threads.emplace_back(body, i, i + 1, context);
  for (std::thread& thread : threads) thread.join();
}

// One row of q times a state, divided by its normaliser.
template <class T>
std::vector<double> product(const Case<T>& c, const T* query, const std::vector<double>& state) {
  const int64_t columns = c.s.width + c.normalize;
  std::vector<double> out(static_cast<size_t>(columns));
  for (int64_t e = 0; e < c.s.depth; ++e) {
    for (int64_t m = 0; m < columns; ++m) out[m] += static_cast<double>(query[e]) * state[e * columns + m];
  }
  const double by = c.normalize ? out[c.s.width] + 1e-6 : 1.0;
  for (double& x : out) x /= by;
  return out;
}

// The scalar loss sum(out * grad_out) + sum(state * grad_state), from the definition, in double.
template <class T>
double loss(const Case<T>& c) {
  const int64_t columns = c.s.width + c.normalize;
  double total = 0;
  for (int64_t head = 0; head < c.heads(); ++head) {
    std::vector<double> state(static_cast<size_t>(c.s.depth * columns));
    for (size_t x = 0; x < state.size(); ++x) {
      state[x] = c.state ? static_cast<double>(c.initial[head * state.size() + x]) : 0.0;
    }
    for (int64_t i = 0; i < c.s.rows; ++i) {
      const T* const key = c.k.data() + (head * c.s.rows + i) * c.s.depth;
      const double decay = c.decay.empty() ? 1.0 : std::exp(static_cast<double>(c.log_decay[head * c.s.rows + i]));
      for (int64_t e = 0; e < c.s.depth; ++e) {
        for (int64_t m = 0; m < columns; ++m) {
          const double value = m < c.s.width ? c.v[(head * c.s.rows + i) * c.s.width + m] : 1.0;
          state[e * columns + m] = decay * state[e * columns + m] + static_cast<double>(key[e]) * value;
        }
      }
      for (int64_t query = head * c.s.group; query < (head + 1) * c.s.group; ++query) {
        const int64_t row = query * c.s.rows + i;
        const std::vector<double> out = product(c, c.q.data() + row * c.s.depth, state);
        for (int64_t m = 0; m < c.s.width; ++m) total += out[m] * c.grad_out[row * c.s.width + m];
      }
    }
    for (size_t x = 0; x < state.size(); ++x) total += state[x] * c.grad_state[head * state.size() + x];
  }
  return total;
}

int failures = 0;

template <class T>
void expect_near(double found, double expected, const char* what, const Case<T>& c, const char* isa,
                 double tolerance) {
  if (std::abs(found - expected) <= tolerance * (1.0 + std::abs(expected))) return;
  ++failures;
  std::printf("%s: %s is %g, expected %g (B%ld H%ld N%ld D%ld M%ld G%ld normalize %d state %d, %zu bytes)\n",
              isa, what, found, expected, static_cast<long>(c.s.batch), static_cast<long>(c.s.heads),
              static_cast<long>(c.s.rows), static_cast<long>(c.s.depth), static_cast<long>(c.s.width),
              static_cast<long>(c.s.group), c.normalize, c.state, sizeof(T));
}

// The sum over the heads of q that share one of k.
template <class T>
void add_groups(const Case<T>& c, std::vector<T>& x) {
  const int64_t size = c.queries() == 0 ? 0 : static_cast<int64_t>(x.size()) / c.queries();
  std::vector<T> sums(size * c.heads());
  for (size_t i = 0; i < x.size(); ++i) sums[i / size / c.s.group * size + i % size] += x[i];
  x = sums;
}

// One position, of the first rows of q, k, v in memory and each head's first decay.
template <class T>
void check_step(const Case<T>& c, const cla::Threads& pool, const char* isa) {
  const int64_t columns = c.s.width + c.normalize, size = c.s.depth * columns;
  std::vector<T> out(c.queries() * c.s.width), state(c.state_size());
  cla::Problem p = c.problem();
  p.state = c.initial.data();
  cla::step(p, out.data(), state.data(), pool);
  const double tolerance = sizeof(T) == 8 ? 1e-10 : 1e-3;
  for (int64_t head = 0; head < c.heads(); ++head) {
    std::vector<double> expected(c.initial.begin() + head * size, c.initial.begin() + (head + 1) * size);
    const double decay = c.decay.empty() ? 1.0 : static_cast<double>(c.decay[head * c.s.rows]);
    for (int64_t x = 0; x < size; ++x) {
      const int64_t e = x / columns, m = x % columns;
      const double value = m < c.s.width ? c.v[head * c.s.width + m] : 1.0;
      expected[x] = decay * expected[x] + static_cast<double>(c.k[head * c.s.depth + e]) * value;
      expect_near(state[head * size + x], expected[x], "a step's state", c, isa, tolerance);
    }
    for (int64_t query = head * c.s.group; query < (head + 1) * c.s.group; ++query) {
      const std::vector<double> row = product(c, c.q.data() + query * c.s.depth, expected);
      for (int64_t m = 0; m < c.s.width; ++m) {
        expect_near(out[query * c.s.width + m], row[m], "a step's output", c, isa, tolerance);
      }
    }
  }
}

template <class T>
void check(const Shape& shape, bool normalize, bool state, bool decayed, int threads, const char* isa) {
  std::mt19937 random(7);
  Case<T> c(shape, normalize, state, random);
  if (decayed) c.draw_decays(random);
  const cla::Problem p = c.problem();
  const cla::Threads pool{threads, run_threads};
  std::vector<T> out(c.grad_out.size()), inverse(normalize ? c.queries() * shape.rows : 0), final(c.state_size());
  cla::forward(p, {c.of_q(out, shape.width), final.data(), inverse.data()}, pool);
  double found = 0;
  for (size_t x = 0; x < out.size(); ++x) found += static_cast<double>(out[x]) * c.grad_out[x];
  for (size_t x = 0; x < final.size(); ++x) found += static_cast<double>(final[x]) * c.grad_state[x];
  expect_near(found, loss(c), "the loss", c, isa, sizeof(T) == 8 ? 1e-10 : 1e-3);

  std::vector<T> grad_q(c.q.size()), grad_k(c.q.size()), grad_v(c.grad_out.size());
  std::vector<T> grad_initial(shape.group * c.state_size()), grad_log_decay(shape.group * c.decay.size());
  const cla::Gradients gradients{c.of_q(c.grad_out, shape.width), c.grad_state.data(), inverse.data(),
                                 c.of_q(grad_q, shape.depth), c.of_q(grad_k, shape.depth),
                                 c.of_q(grad_v, shape.width), grad_initial.data(), nullptr, {},
                                 grad_log_decay.data()};
  cla::backward(p, gradients, pool);
  for (std::vector<T>* x : {&grad_k, &grad_v, &grad_initial, &grad_log_decay}) add_groups(c, *x);
  if (shape.rows > 0) check_step(c, pool, isa);
  if (sizeof(T) == 4 || c.heads() == 0) return;
  // In double, the gradients along a random direction against a difference quotient.
  const double step = 1e-6;
  auto derivative = [&](std::vector<T>& x, const std::vector<T>& gradient, const char* name) {
    if (x.empty()) return;
    const std::vector<T> before = x, direction = Case<T>::draw(static_cast<int64_t>(x.size()), random);
    double expected = 0, difference = 0;
    for (size_t i = 0; i < x.size(); ++i) expected += gradient[i] * direction[i];
    for (const double sign : {1.0, -1.0}) {
      for (size_t i = 0; i < x.size(); ++i) x[i] = before[i] + sign * step * direction[i];
      difference += sign * loss(c) / (2 * step);
    }
    x = before;
    expect_near(expected, difference, name, c, isa, 2e-4);
  };
  derivative(c.q, grad_q, "the gradient of q");
  derivative(c.k, grad_k, "the gradient of k");
  derivative(c.v, grad_v, "the gradient of v");
  if (state) derivative(c.initial, grad_initial, "the gradient of the state");
  derivative(c.log_decay, grad_log_decay, "the gradient of the decays");
}

template <class T>
struct Results {
  std::vector<T> out, state, inverse, q, k, v, initial;
};

// Outputs and gradients of `p`, whose arrays are those of `c` or begin within them by the same offsets.
template <class T>
void run(const Case<T>& c, const cla::Problem& p, int64_t first, const T* grad_state, const cla::Threads& pool,
         Results<T>& r, T* state, T* inverse, T* initial) {
  auto at = [&](std::vector<T>& x, int64_t columns) {
    cla::Array array = c.of_q(x, columns);
    array.data = x.data() + first * columns;
    return array;
  };
  cla::forward(p, {at(r.out, c.s.width), state, inverse}, pool);
  std::vector<T> grad_out = c.grad_out;
  cla::backward(p, {at(grad_out, c.s.width), grad_state, inverse, at(r.q, c.s.depth), at(r.k, c.s.depth),
                    at(r.v, c.s.width), initial},
                pool);
}

// Packed sequences give what each of them gives alone.
template <class T>
void check_packed(const std::vector<int32_t>& offsets, bool normalize, int threads, const char* isa) {
  std::mt19937 random(7);
  const int64_t sequences = static_cast<int64_t>(offsets.size()) - 1;
  const Case<T> c({1, 2, offsets.back(), 18, 33}, normalize, true, random);
  const int64_t states = c.state_size();
  const std::vector<T> initial = Case<T>::draw(sequences * states, random);
  const std::vector<T> grad_state = Case<T>::draw(sequences * states, random);
  const cla::Threads pool{threads, run_threads};
  auto empty = [&] {
    const std::vector<T> numbers(sequences * states);
    return Results<T>{c.v, numbers, std::vector<T>(c.heads() * c.s.rows), c.q, c.k, c.v, numbers};
  };
  Results<T> together = empty(), alone = empty();
  cla::Problem p = c.problem();
  p.state = initial.data();
  p.offsets = offsets.data();
  p.sequences = sequences;
  run(c, p, 0, grad_state.data(), pool, together, together.state.data(), together.inverse.data(),
      together.initial.data());
  for (int64_t s = 0; s < sequences; ++s) {
    cla::Problem one = c.problem();
    one.rows = offsets[s + 1] - offsets[s];
    one.q.data = const_cast<T*>(c.q.data()) + offsets[s] * c.s.depth;
    one.k.data = const_cast<T*>(c.k.data()) + offsets[s] * c.s.depth;
    one.v.data = const_cast<T*>(c.v.data()) + offsets[s] * c.s.width;
    one.state = initial.data() + s * states;
    std::vector<T> inverse(c.heads() * one.rows);
    run(c, one, offsets[s], grad_state.data() + s * states, pool, alone, alone.state.data() + s * states,
        inverse.data(), alone.initial.data() + s * states);
  }
  auto compare = [&](const std::vector<T>& found, const std::vector<T>& expected, const char* what) {
    for (size_t x = 0; x < found.size(); ++x) {
      expect_near(found[x], expected[x], what, c, isa, sizeof(T) == 8 ? 1e-10 : 1e-3);
    }
  };
  compare(together.out, alone.out, "an output of a packed sequence");
  compare(together.state, alone.state, "a state of a packed sequence");
  compare(together.q, alone.q, "a gradient of packed queries");
  compare(together.k, alone.k, "a gradient of packed keys");
  compare(together.v, alone.v, "a gradient of packed values");
  compare(together.initial, alone.initial, "a gradient of a packed sequence's state");
}

// One token of TransNormer's attentions: nothing is read or written beyond an array.
void check_decoding(int64_t batch, int64_t heads, int64_t dim, int threads) {
  std::mt19937 random(7);
  const cla::Threads pool{threads, run_threads};
  const int64_t size = 5, row = heads * dim;
  auto draw = [&](int64_t count) { return Case<float>::draw(count, random); };
  const std::vector<float> q = draw(batch * row), k = draw(batch * row), v = draw(batch * row);
  const std::vector<float> direction = draw(dim), state = draw(batch * row * dim);
  const std::vector<double> theta(dim / 2, 0.3);
  std::vector<int64_t> positions(batch);
  for (int64_t b = 0; b < batch; ++b) positions[b] = b % size;
  std::vector<float> out(batch * row), state_out(state.size()), keys(batch * row * size), values(keys);
  const cla::Turn turn{direction.data(), theta.data(), positions.data(), 0.5f};
  for (const bool flag : {false, true}) {
    cla::norm_step({batch, heads, dim, q.data(), k.data(), v.data(), turn, flag, state.data(), out.data(),
                    state_out.data()},
                   pool);
    cla::block_step({batch, heads, dim, size, q.data(), k.data(), v.data(), turn, flag, keys.data(),
                     values.data(), out.data()},
                    pool);
  }
  cla::rms_norm(q.data(), batch * heads, dim, 1e-8, out.data(), pool);
  const std::vector<float> weight = draw(2 * heads * dim), bias = draw(2 * heads), back = draw(dim * heads);
  std::vector<float> heads_of(batch * 2 * heads), whole(batch * dim);
  cla::LinearStep linear;
  linear.product = {batch, dim, 2 * heads, q.data(), weight.data(), bias.data(), heads_of.data(), heads_of.data()};
  linear.normed = true;
  if (batch > 0) {
    cla::linear_step(linear, pool);
    cla::gated_step({batch, dim, heads, 1e-8, q.data(), weight.data(), bias.data(), back.data(), nullptr,
                     whole.data()},
                    pool);
  }
}

}  // namespace

int main() {
  const Shape shapes[] = {{1, 1, 1, 1, 1},   {1, 2, 33, 5, 7},   {2, 1, 64, 16, 16}, {1, 1, 1500, 16, 48},
                          {1, 3, 31, 17, 1}, {1, 1, 0, 3, 4},    {0, 2, 9, 3, 4},    {1, 1, 70, 130, 3},
                          {1, 1, 300, 8, 8}, {1, 1, 40, 64, 130}, {1, 2, 40, 0, 3},
                          {1, 2, 40, 3, 0},  {2, 2, 50, 9, 17, 3}, {1, 1, 20, 16, 16, 2}};
  for (const cla::Kernels* kernels : cla::available_kernels()) {
    cla::choose_kernels(kernels->name);
    for (const int threads : {1, 3}) {
      check_decoding(1, 1, 1, threads);
      check_decoding(3, 2, 33, threads);
      check_decoding(5, 71, 130, threads);
      check_decoding(200, 2, 64, threads);
      check_decoding(0, 2, 4, threads);
    }
    for (const Shape& shape : shapes) {
      for (const int threads : {1, 3}) {
        for (const bool normalize : {false, true}) {
          for (const bool state : {false, true}) {
            // Long enough to be cut, which takes threads and most of this program's time.
            if (shape.rows == 1500 && (threads == 1 || normalize != state)) continue;
            for (const bool decayed : {false, true}) {
              check<double>(shape, normalize, state, decayed, threads, kernels->name);
              check<float>(shape, normalize, state, decayed, threads, kernels->name);
            }
          }
        }
      }
    }
    for (const int threads : {1, 8}) {
      for (const bool normalize : {false, true}) {
        for (const auto& offsets : {std::vector<int32_t>{0, 0, 1, 34, 34, 50, 50}, {0, 700, 710}}) {
          if (offsets[1] == 700 && threads == 1) continue;
          check_packed<double>(offsets, normalize, threads, kernels->name);
          check_packed<float>(offsets, normalize, threads, kernels->name);
        }
      }
    }
    std::printf("%s: checked\n", kernels->name);
  }
  return failures == 0 ? 0 : 1;
}
