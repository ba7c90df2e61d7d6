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
  using Pattern = Pack<Bits<T>>;

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

  // Bit patterns of values, for records of old ones.

  //! Moves a record on by k bits and puts the low k bits of every value on top.
  template <class T>
  MEND_SET_TARGET static Pattern<T> push(const Pattern<T>& record, const Pack<T>& a, int k) {
    using Word = std::make_unsigned_t<Bits<T>>;
    using Unsigned = Vector<Word>;
    const Word low = (Word{1} << k) - 1;
    const Unsigned merged = Unsigned(vector(record)) | (Unsigned(vector(a)) & low);
    return pack<Bits<T>>(Vector<Bits<T>>(merged >> k | merged << (8 * int{sizeof(T)} - k)));
  }
  //! The values nearest to the estimates whose low k bits stand in the record at `shift`: up to
  //! 2^(k-1) units below, less than that above.
  template <class T>
  MEND_SET_TARGET static Pack<T> recall(const Pack<T>& estimate, const Pattern<T>& record,
                                        int shift, int k) {
    using Word = std::make_unsigned_t<Bits<T>>;
    using Unsigned = Vector<Word>;
    const Word half = Word{1} << (k - 1), low = (Word{1} << k) - 1;
    const Unsigned base = Unsigned(vector(estimate)), code = Unsigned(vector(record)) >> shift;
    return pack<T>(Vector<T>(base + ((code - base + half) & low) - half));
  }
  //! By how many units a is above the estimate, and 7: 0 to 14; 15 stands for what lies further.
  template <class T>
  MEND_SET_TARGET static Pack<T> difference(const Pack<T>& a, const Pack<T>& estimate) {
    using Unsigned = Vector<std::make_unsigned_t<Bits<T>>>;
    const Unsigned code = Unsigned(vector(a)) - Unsigned(vector(estimate)) + 7;
    return pack<T>(Vector<T>(code < 15 ? code : code * 0 + 15));
  }
  //! The lanes, as bits, whose difference at `shift` is 15.
  template <class T>
  MEND_SET_TARGET static unsigned far(const Pattern<T>& record, int shift) {
    return lanes_of<T>(Vector<Bits<T>>((vector(record) >> shift & 15) == 15));
  }
  template <class T>
  MEND_SET_TARGET static Pack<T> add_difference(const Pack<T>& estimate, const Pattern<T>& record,
                                                int shift) {
    using Unsigned = Vector<std::make_unsigned_t<Bits<T>>>;
    return pack<T>(
        Vector<T>(Unsigned(vector(estimate)) + (Unsigned(vector(record)) >> shift & 15) - 7));
  }
  //! For patterns as signed integers, of which -0 is the least.
  template <class T>
  MEND_SET_TARGET static Pattern<T> least(const Pattern<T>& a, const Pack<T>& b) {
    const Vector<Bits<T>> x = vector(a), y = Vector<Bits<T>>(vector(b));
    return pack<Bits<T>>(x < y ? x : y);
  }
  template <class T>
  MEND_SET_TARGET static bool has_negative_zero(const Pattern<T>& least) {
    return lanes_of<T>(Vector<Bits<T>>(vector(least) == sign<T>())) != 0;
  }
  //! The lanes, as bits, where not 2^exponent(a) <= factor |b|; so too where either is not finite.
  template <class T>
  MEND_SET_TARGET static unsigned outside(const Pack<T>& a, const Pack<T>& b, T factor) {
    constexpr Bits<T> exponent =
        sizeof(T) == 4 ? Bits<T>{0x7f800000} : static_cast<Bits<T>>(0x7ff0000000000000);
    const Vector<T> power = Vector<T>(Vector<Bits<T>>(vector(a)) & exponent);
    const Vector<T> excess = power - factor * Vector<T>(Vector<Bits<T>>(vector(b)) & ~sign<T>());
#if defined(__x86_64__) && MEND_SET_BYTES == 64
    unsigned short lanes;
    if constexpr (sizeof(T) == 4)
      asm("vcmpps {$6, %2, %1, %0|%0, %1, %2, 6}" : "=Yk"(lanes) : "v"(excess), "v"(Vector<T>{}));
    else
      asm("vcmppd {$6, %2, %1, %0|%0, %1, %2, 6}" : "=Yk"(lanes) : "v"(excess), "v"(Vector<T>{}));
    return lanes;
#else
    return lanes_of<T>(~Vector<Bits<T>>(excess <= 0));
#endif
  }
  //! Writes the chosen lanes one after another and returns the end; up to a register is written.
  template <class T>
  MEND_SET_TARGET static T* compress(T* to, const Pack<T>& a, unsigned chosen) {
#if defined(__x86_64__) && MEND_SET_BYTES == 64
    const auto lanes = static_cast<unsigned short>(chosen);
    const auto count = static_cast<unsigned>(__builtin_popcount(chosen));
    Vector<T> v;
    if constexpr (sizeof(T) == 4)
      asm("vpcompressd {%1, %0%{%2%}%{z%}|%0%{%2%}%{z%}, %1}"
          : "=v"(v)
          : "v"(vector(a)), "Yk"(lanes));
    else
      asm("vpcompressq {%1, %0%{%2%}%{z%}|%0%{%2%}%{z%}, %1}"
          : "=v"(v)
          : "v"(vector(a)), "Yk"(lanes));
    __builtin_memcpy(to, &v, 16);  // short, because mostly none or one is chosen
    if (__builtin_expect(count > 16 / sizeof(T), 0)) __builtin_memcpy(to, &v, sizeof v);
    return to + count;
#else
    for (; chosen != 0; chosen &= chosen - 1) *to++ = a.values[__builtin_ctz(chosen)];
    return to;
#endif
  }
  //! Puts values, one after another, into the chosen lanes and returns the end; up to a register
  //! is read.
  template <class T>
  MEND_SET_TARGET static const T* expand(Pack<T>& a, const T* from, unsigned chosen) {
#if defined(__x86_64__) && MEND_SET_BYTES == 64
    const auto lanes = static_cast<unsigned short>(chosen);
    Vector<T> v = vector(a), x;
    __builtin_memcpy(&x, from, sizeof x);
    if constexpr (sizeof(T) == 4)
      asm("vpexpandd {%1, %0%{%2%}|%0%{%2%}, %1}" : "+v"(v) : "v"(x), "Yk"(lanes));
    else
      asm("vpexpandq {%1, %0%{%2%}|%0%{%2%}, %1}" : "+v"(v) : "v"(x), "Yk"(lanes));
    a = pack<T>(v);
    return from + __builtin_popcount(chosen);
#else
    for (; chosen != 0; chosen &= chosen - 1) a.values[__builtin_ctz(chosen)] = *from++;
    return from;
#endif
  }
  //! Into memory that will not be read soon, past the caches; `to` is aligned for a register.
  template <class T>
  MEND_SET_TARGET static void store_past_cache(void* to, const Pack<T>& a) {
#if defined(__x86_64__)
#if defined(__AVX__)
    constexpr bool vex = true;
#else
    constexpr bool vex = MEND_SET_BYTES > 16;
#endif
    if constexpr (!vex)
      asm("movntps {%1, %0|%0, %1}" : "=m"(*reinterpret_cast<Pack<T>*>(to)) : "x"(vector(a)));
    else
      asm("vmovntps {%1, %0|%0, %1}" : "=m"(*reinterpret_cast<Pack<T>*>(to)) : "v"(vector(a)));
#else
    __builtin_memcpy(to, &a, sizeof a);
#endif
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
  //! Bit i: whether lane i is set.
  template <class T>
  MEND_SET_TARGET static unsigned lanes_of(const Vector<Bits<T>>& mask) {
#if defined(__x86_64__) && MEND_SET_BYTES == 16
    if constexpr (sizeof(T) == 4)
      return static_cast<unsigned>(__builtin_ia32_movmskps(Vector<float>(mask)));
    else
      return static_cast<unsigned>(__builtin_ia32_movmskpd(Vector<double>(mask)));
#elif defined(__x86_64__) && MEND_SET_BYTES == 32
    if constexpr (sizeof(T) == 4)
      return static_cast<unsigned>(__builtin_ia32_movmskps256(Vector<float>(mask)));
    else
      return static_cast<unsigned>(__builtin_ia32_movmskpd256(Vector<double>(mask)));
#elif defined(__x86_64__)
    unsigned short lanes;
    if constexpr (sizeof(T) == 4)
      asm("vpmovd2m {%1, %0|%0, %1}" : "=Yk"(lanes) : "v"(mask));
    else
      asm("vpmovq2m {%1, %0|%0, %1}" : "=Yk"(lanes) : "v"(mask));
    return lanes;
#else
    unsigned lanes = 0;
    for (unsigned i = 0; i < width<T>; ++i) lanes |= static_cast<unsigned>(mask[i] & 1) << i;
    return lanes;
#endif
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
