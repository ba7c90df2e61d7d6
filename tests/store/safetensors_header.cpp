#include <mend/store/safetensors_header.hpp>

#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

using mend::DType;
using mend::FileError;
using mend::store::SafetensorsHeader;

namespace {

SafetensorsHeader parse(std::string_view text, std::uint64_t data_size) {
  return SafetensorsHeader::parse(text, data_size, "file");
}

//! The message with which a header is refused; empty if it is not.
std::string refusal(std::string_view text, std::uint64_t data_size = 0) {
  try {
    (void)parse(text, data_size);
  } catch (const FileError& e) {
    CHECK(e.path() == "file");
    return e.what();
  }
  return "";
}

bool says(const std::string& message, std::string_view part) {
  return message.find(part) != std::string::npos;
}

std::string tensor(const std::string& fields) { return "{\"w\":{" + fields + "}}"; }

std::string escaped(std::string_view name) {
  return parse("{\"__metadata__\":{\"" + std::string{name} + "\":\"\"}}", 0).metadata.at(0).first;
}

}  // namespace

TEST_CASE("a header is read as the format has it") {
  SafetensorsHeader h = parse(
      "{ \"__metadata__\" : {\"format\":\"pt\", \"empty\":\"\"},\t\"b\":{\"data_offsets\":[8,12],"
      "\"shape\":[],\"dtype\":\"F32\"}, \"a\":{\"dtype\":\"BF16\",\"shape\":[2, 2],"
      "\"data_offsets\":[0,8]},\"none\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[8,8]}}"
      "  ",
      12);
  CHECK(h.metadata == SafetensorsHeader::Strings{{"format", "pt"}, {"empty", ""}});
  CHECK(*h.find("format") == "pt");
  CHECK(h.find("form") == nullptr);
  REQUIRE(h.tensors.size() == 3);  // in the order of their data, whatever the order of the text
  CHECK(h.tensors[0].name == "a");
  CHECK(h.tensors[0].dtype == DType::bf16);
  CHECK(h.tensors[0].shape == std::vector<std::int64_t>{2, 2});
  CHECK(h.tensors[1].name == "none");
  CHECK(h.tensors[1].shape == std::vector<std::int64_t>{3, 0});
  CHECK(h.tensors[2].name == "b");
  CHECK(h.tensors[2].begin == 8);
  CHECK(h.tensors[2].end == 12);
  CHECK(h.tensors[2].shape.empty());
  CHECK(parse("{}", 0).tensors.empty());
}

TEST_CASE("what is written is read, for every dtype and any name") {
  SafetensorsHeader h;
  std::uint64_t at = 0;
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    auto type = static_cast<DType>(i);
    std::uint64_t size = 6 * mend::size_of(type);
    h.tensors.push_back({"a/\"b\" \\ c\n\x01\x7f \xc3\xa9\xf0\x9f\x98\x80 " + std::to_string(i),
                         type,
                         {2, 3},
                         at,
                         at + size});
    at += size;
  }
  h.tensors.push_back({"", DType::u8, {}, at, at + 1});
  h.tensors.push_back({"zero", DType::f64, {0}, at + 1, at + 1});
  h.metadata = {{"key \"", "value \\ \t"}, {"nested", SafetensorsHeader::text_of({{"a", "b\""}})}};
  std::string text = h.text();
  CHECK((8 + text.size()) % 64 == 0);
  SafetensorsHeader back = parse(text, at + 1);
  CHECK(back.metadata == h.metadata);
  CHECK(SafetensorsHeader::parse_strings(*back.find("nested"), "file") ==
        SafetensorsHeader::Strings{{"a", "b\""}});
  REQUIRE(back.tensors.size() == h.tensors.size());
  for (std::size_t i = 0; i < h.tensors.size(); ++i) {
    CHECK(back.tensors[i].name == h.tensors[i].name);
    CHECK(back.tensors[i].dtype == h.tensors[i].dtype);
    CHECK(back.tensors[i].shape == h.tensors[i].shape);
    CHECK(back.tensors[i].begin == h.tensors[i].begin);
    CHECK(back.tensors[i].end == h.tensors[i].end);
  }
  CHECK(back.text() == text);
}

TEST_CASE("escapes of every kind, surrogate pairs among them") {
  CHECK(escaped(R"(\"\\\/\b\f\n\r\t)") == "\"\\/\b\f\n\r\t");
  CHECK(escaped(R"(\u0041\u00e9\u20AC\ud83d\ude00)") == "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(escaped(R"(\udbff\udfff\uffff\u0000)") == std::string("\xf4\x8f\xbf\xbf\xef\xbf\xbf\0", 8));
  for (std::string_view wrong : {R"(\x)", R"(\u12)", R"(\u12g4)", R"(\ud83d)", R"(\ude00)",
                                 R"(\ud83d\n)", R"(\ud83dx)", R"(\ud83d\u0041)", R"(\ud83d\ud83d)",
                                 R"(\U0041)", "\xff", "\xc3", "\xed\xa0\x80", "\n", R"(\)"})
    CHECK_THROWS_AS((void)escaped(wrong), FileError);
}

TEST_CASE("JSON that is not a header is refused, with the byte") {
  for (std::string_view text : {"",
                                " ",
                                "{",
                                "}",
                                "[]",
                                "null",
                                "1",
                                "\"a\"",
                                " {}",
                                "{} x",
                                "{}{}",
                                "{,}",
                                "{\"a\"}",
                                "{\"a\":}",
                                "{\"a\":1}",
                                "{\"a\":[]}",
                                "{\"a\":{}}",
                                "{\"a\":null}",
                                "{\"a\":{},}",
                                "{a:{}}",
                                "{'a':{}}",
                                "{\"__metadata__\":1}",
                                "{\"__metadata__\":{\"a\":1}}",
                                "{\"__metadata__\":{\"a\":{}}}",
                                "{\"__metadata__\":{\"a\":\"b\",}}",
                                "{\"__metadata__\":{\"a\":\"b\"\"c\":\"d\"}}",
                                "{\"__metadata__\":{}",
                                "/**/{}",
                                "\xef\xbb\xbf{}"})
    CHECK_MESSAGE(says(refusal(text), "damaged at byte"), text);
  CHECK(says(refusal("{} x"), "byte 3"));
  CHECK(refusal("{}\n \t\r").empty());
  CHECK(refusal(std::string_view{"{}\0", 3}) != "");
}

TEST_CASE("deep nesting does not reach the stack") {
  CHECK(refusal(std::string(1'000'000, '{')) != "");
  CHECK(refusal(std::string(1'000'000, '[')) != "");
  std::string deep = "{\"w\":";
  for (int i = 0; i < 200'000; ++i) deep += "{\"dtype\":";
  CHECK(refusal(deep) != "");
}

TEST_CASE("a tensor has exactly its three fields, once, in their types") {
  std::string dtype = "\"dtype\":\"F32\"", shape = "\"shape\":[1]", at = "\"data_offsets\":[0,4]";
  CHECK(refusal(tensor(dtype + "," + shape + "," + at), 4).empty());
  CHECK(says(refusal(tensor(shape + "," + at), 4), "lacks"));
  CHECK(says(refusal(tensor(dtype + "," + at), 4), "lacks"));
  CHECK(says(refusal(tensor(dtype + "," + shape), 4), "lacks"));
  CHECK(says(refusal(tensor(dtype + "," + shape + "," + at + ",\"more\":1"), 4), "unknown field"));
  CHECK(says(refusal(tensor(dtype + "," + dtype + "," + shape + "," + at), 4),
             "'dtype' comes twice"));
  for (std::string_view wrong :
       {"\"F33\"", "\"f32\"", "\"\"", "\"F8_E4M3\"", "\"F32 \"", "32", "[\"F32\"]", "null"})
    CHECK(refusal(tensor("\"dtype\":" + std::string{wrong} + "," + shape + "," + at), 4) != "");
  for (std::string_view wrong :
       {"[-1]", "[1.0]", "[1e0]", "[01]", "[+1]", "[\"1\"]", "[[1]]", "[1,]", "[,1]", "1", "{}",
        "[9223372036854775808]", "[99999999999999999999999]", "[0x1]", "[1 1]", "[true]"})
    CHECK_MESSAGE(refusal(tensor(dtype + ",\"shape\":" + std::string{wrong} + "," + at), 4) != "",
                  wrong);
  for (std::string_view wrong : {"[]", "[0]", "[0,4,4]", "[4,0]", "[0,-4]", "4", "[0,4.0]"})
    CHECK_MESSAGE(
        refusal(tensor(dtype + "," + shape + ",\"data_offsets\":" + std::string{wrong}), 4) != "",
        wrong);
}

TEST_CASE("a name or key that comes twice is refused, also when written differently") {
  std::string f = "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
  CHECK(refusal("{\"a\":" + f + ",\"b\":" + f + "}").empty());
  CHECK(says(refusal("{\"a\":" + f + ",\"a\":" + f + "}"), "'a' comes twice"));
  CHECK(says(refusal("{\"a\":" + f + ",\"\\u0061\":" + f + "}"), "'a' comes twice"));
  CHECK(says(refusal("{\"__metadata__\":{},\"__metadata__\":{}}"), "comes twice"));
  CHECK(says(refusal("{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}"), "'k' comes twice"));
}

TEST_CASE("offsets cover the data without holes, overlaps or excess") {
  auto two = [](const std::string& a, const std::string& b) {
    return "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + a +
           "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + b + "}}";
  };
  CHECK(refusal(two("[0,4]", "[4,8]"), 8).empty());
  CHECK(refusal(two("[4,8]", "[0,4]"), 8).empty());
  CHECK(says(refusal(two("[0,4]", "[0,4]"), 4), "overlaps"));
  CHECK(says(refusal(two("[0,4]", "[2,6]"), 6), "overlaps"));
  CHECK(says(refusal(two("[0,4]", "[5,9]"), 9), "gap"));
  CHECK(says(refusal(two("[1,5]", "[5,9]"), 9), "gap"));
  CHECK(says(refusal(two("[0,4]", "[4,9]"), 9), "differ from its size"));
  CHECK(says(refusal(two("[0,4]", "[4,8]"), 7), "cut short"));
  CHECK(says(refusal(two("[0,4]", "[4,8]"), 9), "cut short"));
  CHECK(says(refusal("{}", 1), "cut short"));
}

TEST_CASE("sizes that overflow do not wrap around to one that fits") {
  for (std::string_view shape :
       {"[4294967296,4294967296]", "[9223372036854775807,2]", "[4611686018427387904]",
        "[2305843009213693952,8]", "[4294967296,4294967296,0]"})
    CHECK_MESSAGE(says(refusal(tensor("\"dtype\":\"F32\",\"shape\":" + std::string{shape} +
                                      ",\"data_offsets\":[0,0]"),
                               0),
                       "size"),
                  shape);
  CHECK(refusal(tensor("\"dtype\":\"F32\",\"shape\":[9223372036854775807],"
                       "\"data_offsets\":[0,9223372036854775807]"),
                4) != "");
}

TEST_CASE("every prefix, and any mutation, is read or refused, never worse") {
  SafetensorsHeader h;
  h.tensors = {{"a\"", DType::f32, {2}, 0, 8}, {"b", DType::u8, {}, 8, 9}};
  h.metadata = {{"k", "v"}};
  std::string text = h.text();
  std::size_t brace = text.rfind('}');
  for (std::size_t n = 0; n <= brace; ++n) CHECK(refusal(text.substr(0, n), 9) != "");
  std::mt19937 random{7};
  std::size_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string mutant = text;
    for (unsigned k = 0; k <= random() % 3; ++k) {
      std::size_t at = random() % mutant.size();
      switch (random() % 3) {
        case 0: mutant[at] = static_cast<char>(random()); break;
        case 1: mutant.erase(at, 1 + random() % 5); break;
        default: mutant.insert(at, mutant.substr(random() % mutant.size(), random() % 9));
      }
    }
    refused += !refusal(mutant, 9).empty();
  }
  CHECK(refused > 10'000);
}
