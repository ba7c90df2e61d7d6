#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "mend/config.hpp"

namespace mend {

//! The element types that mend stores, sends and reduces. bf16 and f16 are bit patterns on the
//! host.
enum class DType : std::uint8_t {
  f32,
  f64,
  bf16,
  f16,
  i8,
  u8,
  i16,
  u16,
  i32,
  u32,
  i64,
  u64,
  boolean
};

//! Which DType a C++ type is. Specialise it for a type of your own with the same size and layout:
//! `template <> inline constexpr mend::DType mend::dtype_of<__nv_bfloat16> = mend::DType::bf16;`
template <class T>
inline constexpr auto dtype_of = nullptr;
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<bool> = DType::boolean;
template <>
inline constexpr DType dtype_of<std::byte> = DType::u8;
template <std::integral T>
  requires(sizeof(T) <= 8)
inline constexpr DType dtype_of<T> =
    sizeof(T) == 8   ? (std::is_signed_v<T> ? DType::i64 : DType::u64)
    : sizeof(T) == 4 ? (std::is_signed_v<T> ? DType::i32 : DType::u32)
    : sizeof(T) == 2 ? (std::is_signed_v<T> ? DType::i16 : DType::u16)
                     : (std::is_signed_v<T> ? DType::i8 : DType::u8);

//! A type that mend knows as an element.
template <class T>
concept Element = std::same_as<std::remove_cv_t<decltype(dtype_of<std::remove_cv_t<T>>)>, DType>;

[[nodiscard]] constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
    case DType::u64: return 8;
    case DType::f32:
    case DType::i32:
    case DType::u32: return 4;
    case DType::bf16:
    case DType::f16:
    case DType::i16:
    case DType::u16: return 2;
    case DType::i8:
    case DType::u8:
    case DType::boolean: return 1;
  }
  return 0;
}

[[nodiscard]] constexpr bool is_floating(DType type) {
  return type == DType::f32 || type == DType::f64 || type == DType::bf16 || type == DType::f16;
}

//! The name in a .safetensors header.
[[nodiscard]] constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::bf16: return "BF16";
    case DType::f16: return "F16";
    case DType::i8: return "I8";
    case DType::u8: return "U8";
    case DType::i16: return "I16";
    case DType::u16: return "U16";
    case DType::i32: return "I32";
    case DType::u32: return "U32";
    case DType::i64: return "I64";
    case DType::u64: return "U64";
    case DType::boolean: return "BOOL";
  }
  return "?";
}

}  // namespace mend
