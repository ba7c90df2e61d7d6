// One instruction set's arithmetic, over the vector extension that g++ and clang share. Included by
// instruction_sets.hpp once per set, with MEND_SET its name, MEND_SET_BYTES the size of a register,
// MEND_SET_TARGET the target attribute, MEND_SET_ROUND_HERE what keeps a product from being fused.
// The functions are plain inline and take packs in memory: always_inline ones with a target
// attribute are refused by both compilers, vectors by value from code without the target by clang.

struct MEND_SET {
  template <class T>
  static constexpr std::size_t width = MEND_SET_BYTES / sizeof(T);
  //! Values side by side in a plain array: one ABI with and without the target. Written only as a
  //! whole vector, so that the optimiser keeps it in a register.
  template <class T>
  struct Pack {
    T values[width<T>];
  };
  template <class T>
  using Bits = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  template <class T>
  using Mask = Pack<Bits<T>>;

  template <class T>
  MEND_SET_TARGET static Pack<T> load(const T* from) {
    Pack<T> p;
    move(p.values, from);
    return p;
  }
  template <class T>
  MEND_SET_TARGET static void store(T* to, const Pack<T>& a) {
    move(to, a.values);
  }
  template <class T>
  MEND_SET_TARGET static void copy(Pack<T>& to, const Pack<T>& from) {
    move(to.values, from.values);
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> all(T value) {
    return pack<T>(value - Vector<T>{});
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> add(const Pack<T>& a, const Pack<T>& b) {
    return pack<T>(vector(a) + vector(b));
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> sub(const Pack<T>& a, const Pack<T>& b) {
    return pack<T>(vector(a) - vector(b));
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> mul(const Pack<T>& a, const Pack<T>& b) {
    Vector<T> product = vector(a) * vector(b);
    MEND_SET_ROUND_HERE(product);
    return pack<T>(product);
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> div(const Pack<T>& a, const Pack<T>& b) {
    return pack<T>(vector(a) / vector(b));
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> neg(const Pack<T>& a) {
    return pack<T>(-vector(a));
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> fma(const Pack<T>& a, const Pack<T>& b, const Pack<T>& c) {
    Vector<T> r = vector(a), x = vector(b), y = vector(c);
#if defined(__x86_64__) && MEND_SET_BYTES > 16
    if constexpr (sizeof(T) == 4)
      asm("vfmadd213ps {%2, %1, %0|%0, %1, %2}" : "+v"(r) : "v"(x), "v"(y));
    else
      asm("vfmadd213pd {%2, %1, %0|%0, %1, %2}" : "+v"(r) : "v"(x), "v"(y));
    return pack<T>(r);
#elif defined(__aarch64__)
    if constexpr (sizeof(T) == 4)
      asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(y) : "w"(r), "w"(x));
    else
      asm("fmla %0.2d, %1.2d, %2.2d" : "+w"(y) : "w"(r), "w"(x));
    return pack<T>(y);
#else
    if constexpr (sizeof(T) == 4) {
      return fused_in_double(a, b, c);
    } else {
      for (std::size_t i = 0; i < width<T>; ++i) r[i] = std::fma(r[i], x[i], y[i]);
      return pack<T>(r);
    }
#endif
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> sqrt(const Pack<T>& a) {
    Vector<T> r = vector(a);
#if defined(__x86_64__) && (MEND_SET_BYTES > 16 || defined(__AVX__))
    if constexpr (sizeof(T) == 4)
      asm("vsqrtps {%0, %0|%0, %0}" : "+v"(r));
    else
      asm("vsqrtpd {%0, %0|%0, %0}" : "+v"(r));
#elif defined(__x86_64__)
    if constexpr (sizeof(T) == 4)
      asm("sqrtps {%0, %0|%0, %0}" : "+x"(r));
    else
      asm("sqrtpd {%0, %0|%0, %0}" : "+x"(r));
#elif defined(__aarch64__)
    if constexpr (sizeof(T) == 4)
      asm("fsqrt %0.4s, %0.4s" : "+w"(r));
    else
      asm("fsqrt %0.2d, %0.2d" : "+w"(r));
#else
    for (std::size_t i = 0; i < width<T>; ++i) r[i] = std::sqrt(r[i]);
#endif
    return pack<T>(r);
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> abs(const Pack<T>& a) {
    return pack<T>(Vector<T>(Vector<Bits<T>>(vector(a)) & ~sign<T>()));
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> copysign(const Pack<T>& a, const Pack<T>& b) {
    return pack<T>(Vector<T>((Vector<Bits<T>>(vector(a)) & ~sign<T>()) |
                             (Vector<Bits<T>>(vector(b)) & sign<T>())));
  }
  template <class T>
  MEND_SET_TARGET static Mask<T> less(const Pack<T>& a, const Pack<T>& b) {
    return pack<Bits<T>>(Vector<Bits<T>>(vector(a) < vector(b)));
  }
  template <class T>
  MEND_SET_TARGET static Mask<T> less_equal(const Pack<T>& a, const Pack<T>& b) {
    return pack<Bits<T>>(Vector<Bits<T>>(vector(a) <= vector(b)));
  }
  template <class T>
  MEND_SET_TARGET static Mask<T> equal(const Pack<T>& a, const Pack<T>& b) {
    return pack<Bits<T>>(Vector<Bits<T>>(vector(a) == vector(b)));
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> select(const Mask<T>& which, const Pack<T>& a, const Pack<T>& b) {
    return pack<T>(vector(which) ? vector(a) : vector(b));
  }

  //! The same values as half.hpp's, a register at a time.
  MEND_SET_TARGET static Pack<float> load_bf16(const std::uint16_t* from) {
    return pack<float>(Vector<float>(words(from) << 16));
  }
  MEND_SET_TARGET static void store_bf16(std::uint16_t* to, const Pack<float>& a) {
    const Words bits = Words(vector(a));
    const Words rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    halves(to, (bits & 0x7fffffff) > 0x7f800000 ? bits * 0 + 0x7fc0 : rounded);
  }
  MEND_SET_TARGET static Pack<float> load_f16(const std::uint16_t* from) {
    const Words h = words(from), size = h & 0x7fff, sign = (h & 0x8000) << 16;
    constexpr std::uint32_t rebias = 112u << 23;
    const Words normal = (size << 13) + rebias + (size >= 0x7c00 ? size * 0 + rebias : size * 0);
    const Words denormal =
        Words(__builtin_convertvector(Vector<std::int32_t>(size), Vector<float>) * 0x1p-24f);
    return pack<float>(Vector<float>((size < 0x400 ? denormal : normal) | sign));
  }
  MEND_SET_TARGET static void store_f16(std::uint16_t* to, const Pack<float>& a) {
    const Words bits = Words(vector(a)), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    const Words normal = (size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13;
    const Words denormal = Words(Vector<float>(size) + 0.5f) - 0x3f000000;
    const Words finite = size < 0x38800000 ? denormal : normal;
    const Words rounded = (size >= 0x477ff000 ? size * 0 + 0x7c00 : finite) | sign;
    halves(to, size > 0x7f800000 ? size * 0 + 0x7e00 : rounded);
  }
  //! width<double> floats as doubles.
  MEND_SET_TARGET static Pack<double> load_float(const float* from) {
    Floats f;
    __builtin_memcpy(&f, from, sizeof f);
    return pack<double>(__builtin_convertvector(f, Vector<double>));
  }

  //! Runs body(MEND_SET{}) with everything that it calls compiled for this set. The body is taken
  //! by value, so that its members are registers and not memory that a store might have changed.
  template <class Body>
  MEND_SET_TARGET __attribute__((flatten, noinline)) static void run(Body body) {
    body(MEND_SET{});
  }

 private:
  template <class T, std::size_t bytes = MEND_SET_BYTES>
  struct VectorOf {
    typedef T Type __attribute__((vector_size(bytes)));
  };
  template <class T>
  using Vector = typename VectorOf<T>::Type;
  using Words = Vector<std::uint32_t>;
  using Floats = typename VectorOf<float, MEND_SET_BYTES / 2>::Type;
  using Halves = typename VectorOf<std::uint16_t, MEND_SET_BYTES / 2>::Type;

  MEND_SET_TARGET static Words words(const std::uint16_t* from) {
    Halves h;
    __builtin_memcpy(&h, from, sizeof h);
    return __builtin_convertvector(h, Words);
  }
  MEND_SET_TARGET static void halves(std::uint16_t* to, const Words& w) {
    const Halves h = __builtin_convertvector(w, Halves);
    __builtin_memcpy(to, &h, sizeof h);
  }
  template <class T>
  MEND_SET_TARGET static void move(T* to, const T* from) {
    Vector<T> v;
    __builtin_memcpy(&v, from, sizeof v);
    __builtin_memcpy(to, &v, sizeof v);
  }
  template <class T>
  MEND_SET_TARGET static Vector<T> vector(const Pack<T>& pack) {
    Vector<T> v;
    __builtin_memcpy(&v, pack.values, sizeof v);
    return v;
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> pack(const Vector<T>& v) {
    Pack<T> p;
    __builtin_memcpy(p.values, &v, sizeof v);
    return p;
  }
  template <class T>
  MEND_SET_TARGET static Vector<Bits<T>> sign() {
    return std::numeric_limits<Bits<T>>::min() - Vector<Bits<T>>{};
  }
#if defined(__x86_64__) && MEND_SET_BYTES == 16
  // fma of floats without the instruction. The product is exact in double; the sum is rounded to
  // odd (the last bit set where anything was lost), after which rounding to float is rounding once.
  static Pack<float> fused_in_double(const Pack<float>& a, const Pack<float>& b,
                                     const Pack<float>& c) {
    using Doubles = typename VectorOf<double, sizeof(double) * width<float>>::Type;
    using Integers = typename VectorOf<std::int64_t, sizeof(double) * width<float>>::Type;
    const auto addend = __builtin_convertvector(vector(c), Doubles);
    auto product =
        __builtin_convertvector(vector(a), Doubles) * __builtin_convertvector(vector(b), Doubles);
    asm("" : "+m"(product));  // not fused
    const Doubles sum = product + addend, back = sum - product;
    const Doubles lost = (product - (sum - back)) + (addend - back);
    // One step towards what was lost where the last bit is even: away from zero if the signs agree.
    const Integers grow = (lost > 0) ^ (sum < 0);
    const Integers inexact = (lost < 0) | (lost > 0), even = (Integers(sum) & 1) - 1;
    const Integers odd = Integers(sum) + (inexact & even & (~grow | 1));
    return pack<float>(__builtin_convertvector(Doubles(odd), Vector<float>));
  }
#endif
};

#undef MEND_SET
#undef MEND_SET_BYTES
#undef MEND_SET_TARGET
#undef MEND_SET_ROUND_HERE
