// Reads MIL text by the grammar that people have seen the engine's compiler accept, and shares no line with the
// project's own parser: a text that only that one takes is refused here.
//
//     program   := program(1.N) [buildInfo = dict<string, string>({{"a", "b"}, ...})] { function... }
//     function  := func name<opset>(type name, ...) { statement... } -> (name, ...);
//     statement := type name, ... = op(argument, ...)[name = literal, ...];
//     argument  := name = (name | literal | (name, ...))
//     type      := dtype | tensor<dtype, [int, ...]> | state<type>
//     literal   := dtype(value) | tensor<...>([value, ...] | value | BLOBFILE(path = string("..."), offset =
//     uint64(N)))
//
// It also wants every name defined once and before it is used, and as many numbers in a literal as its type has.
#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "program.h"

namespace {

constexpr int kDeepest = 16;  // brackets in a literal
const std::set<std::string> kDtypes = {"fp16",  "bf16",  "fp32",  "fp64",   "bool",   "string", "int4",
                                       "int8",  "int16", "int32", "int64",  "uint1",  "uint2",  "uint3",
                                       "uint4", "uint6", "uint8", "uint16", "uint32", "uint64"};

struct Type {
  std::string dtype;
  bool is_tensor = false;
  uint64_t numbers = 1;
};

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool program() {
    if (!word("program") || !symbol('(') || !version() || !symbol(')') || !symbol('[')) return false;
    if (!word("buildInfo") || !symbol('=') || !dictionary() || !symbol(']') || !symbol('{')) return false;
    if (!function()) return false;
    while (!peek('}'))
      if (!function()) return false;
    if (!symbol('}')) return false;
    return at_ == text_.size() || fail("the end of the text");
  }

  std::string why() const {
    const std::string_view before = text_.substr(0, at_);
    const size_t line = 1 + std::count(before.begin(), before.end(), '\n'), start = before.rfind('\n') + 1;
    return "line " + std::to_string(line) + ", column " + std::to_string(at_ - start + 1) + ": need " + need_;
  }

 private:
  bool fail(std::string need) {
    need_ = std::move(need);
    return false;
  }

  void blank() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  bool peek(char c) { return blank(), at_ < text_.size() && text_[at_] == c; }

  bool symbol(char c) {
    if (!peek(c)) return fail(std::string("'") + c + "'");
    ++at_;
    return blank(), true;
  }

  bool version() {
    return text_.compare(at_, 2, "1.") == 0 && (at_ += 2, digits()) ? (blank(), true) : fail("a version 1.N");
  }

  bool digits() {
    const size_t start = at_;
    while (at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_]))) ++at_;
    return at_ > start;
  }

  bool name(std::string& found) {
    blank();
    const auto letter = [this](size_t i) {
      return i < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[i])) || text_[i] == '_');
    };
    if (!letter(at_) || std::isdigit(static_cast<unsigned char>(text_[at_]))) return fail("a name");
    const size_t start = at_;
    while (letter(at_)) ++at_;
    found = text_.substr(start, at_ - start);
    return blank(), true;
  }

  bool word(const char* wanted) {
    const size_t start = at_;
    std::string found;
    if (name(found) && found == wanted) return true;
    at_ = start;
    return fail(wanted);
  }

  bool quoted() {
    if (!peek('"')) return fail("a string in quotes");
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_)
      if (text_[at_] == '\n' || (text_[at_] == '\\' && ++at_ >= text_.size())) return fail("the end of the string");
    return symbol('"');
  }

  bool dictionary() {
    if (!word("dict") || !symbol('<') || !word("string") || !symbol(',') || !word("string") || !symbol('>'))
      return false;
    if (!symbol('(') || !symbol('{')) return false;
    do {
      if (!symbol('{') || !quoted() || !symbol(',') || !quoted() || !symbol('}')) return false;
    } while (peek(',') && symbol(','));
    return symbol('}') && symbol(')');
  }

  bool extent(uint64_t& numbers) {
    const size_t start = at_;
    if (!digits()) return fail("an extent");
    const uint64_t found = std::strtoull(std::string(text_.substr(start, at_ - start)).c_str(), nullptr, 10);
    if (found > UINT32_MAX || (found && numbers > UINT64_MAX / found)) return fail("a smaller extent");
    numbers *= found;
    return blank(), true;
  }

  bool type(Type& found) {
    const size_t start = at_;
    std::string kind;
    if (!name(kind)) return fail("a type");
    if (kind == "state") return symbol('<') && type(found) && symbol('>');
    if (kind == "tensor") {
      found.is_tensor = true;
      if (!symbol('<') || !dtype(found.dtype) || !symbol(',') || !symbol('[')) return false;
      if (!peek(']')) do {
          if (!extent(found.numbers)) return false;
        } while (peek(',') && symbol(','));
      return symbol(']') && symbol('>');
    }
    at_ = start;
    return dtype(found.dtype);
  }

  bool dtype(std::string& found) {
    const size_t start = at_;
    if (name(found) && kDtypes.count(found)) return true;
    at_ = start;
    return fail("a dtype");
  }

  bool value(const std::string& dtype) {
    if (dtype == "string") return quoted();
    if (dtype == "bool") {
      std::string found;
      const size_t start = at_;
      if (name(found) && (found == "true" || found == "false")) return true;
      at_ = start;
      return fail("true or false");
    }
    const bool is_float = dtype[0] == 'f' || dtype[0] == 'b';
    const std::string rest(text_.substr(at_, 64));
    const size_t sign = rest[0] == '-';
    if (!std::isdigit(static_cast<unsigned char>(rest[sign])) || (sign && dtype[0] == 'u'))
      return fail("a finite number of " + dtype);
    char* end = nullptr;
    if (is_float)
      std::strtod(rest.c_str(), &end);
    else
      std::strtoll(rest.c_str(), &end, 0);
    at_ += end - rest.c_str();
    return blank(), true;
  }

  // The numbers of a literal, in brackets within brackets or flat.
  bool values(const std::string& dtype, uint64_t& count, int depth) {
    if (depth > kDeepest) return fail("fewer brackets");
    if (!peek('[')) return ++count, value(dtype);
    if (!symbol('[')) return false;
    if (!peek(']')) do {
        if (!values(dtype, count, depth + 1)) return false;
      } while (peek(',') && symbol(','));
    return symbol(']');
  }

  bool blob() {
    if (!word("BLOBFILE") || !symbol('(') || !word("path") || !symbol('=') || !word("string") || !symbol('('))
      return false;
    if (!quoted() || !symbol(')') || !symbol(',') || !word("offset") || !symbol('=') || !word("uint64")) return false;
    return symbol('(') && (digits() || fail("an offset")) && symbol(')') && symbol(')');
  }

  bool literal() {
    Type of;
    if (!type(of) || !symbol('(')) return false;
    if (!of.is_tensor) return value(of.dtype) && symbol(')');
    if (peek('B')) return blob() && symbol(')');
    uint64_t count = 0;
    const size_t start = at_;
    if (!values(of.dtype, count, 0)) return false;
    if (count != of.numbers && count != 1) {
      at_ = start;
      return fail(std::to_string(of.numbers) + " numbers, got " + std::to_string(count));
    }
    return symbol(')');
  }

  bool used() {
    std::string found;
    const size_t start = at_;
    if (!name(found)) return false;
    if (defined_.count(found)) return true;
    at_ = start;
    return fail(found + " defined before it is used");
  }

  bool define() {
    std::string found;
    const size_t start = at_;
    if (!name(found)) return false;
    if (defined_.insert(found).second) return true;
    at_ = start;
    return fail("another name than " + found + ", which is defined");
  }

  // A literal begins with a dtype, tensor or state and a bracket; all else is a name.
  bool is_literal() {
    const size_t start = at_;
    std::string first;
    const bool found = name(first) && (kDtypes.count(first) || first == "tensor") && (peek('(') || peek('<'));
    at_ = start;
    return found;
  }

  bool argument() {
    std::string parameter;
    if (!name(parameter) || !symbol('=')) return false;
    if (!peek('(')) return is_literal() ? literal() : used();
    if (!symbol('(')) return false;
    do {
      if (!used()) return false;
    } while (peek(',') && symbol(','));
    return symbol(')');
  }

  bool statement() {
    // The results are defined behind the arguments: none of these may be one of them.
    const size_t start = at_;
    do {
      Type ignored;
      std::string result;
      if (!type(ignored) || !name(result)) return false;
    } while (peek(',') && symbol(','));
    std::string op;
    if (!symbol('=') || !name(op) || !symbol('(')) return false;
    if (!peek(')')) do {
        if (!argument()) return false;
      } while (peek(',') && symbol(','));
    if (!symbol(')') || !symbol('[')) return false;
    do {
      std::string attribute;
      if (!name(attribute) || !symbol('=') || !literal()) return false;
    } while (peek(',') && symbol(','));
    if (!symbol(']') || !symbol(';')) return false;
    const size_t behind = at_;
    at_ = start;
    do {
      Type ignored;
      if (!type(ignored) || !define()) return false;
    } while (peek(',') && symbol(','));
    at_ = behind;
    return true;
  }

  bool function() {
    std::string opset, label;
    defined_.clear();
    if (!word("func") || !name(label) || !symbol('<') || !name(opset) || !symbol('>') || !symbol('(')) return false;
    if (!peek(')')) do {
        Type ignored;
        if (!type(ignored) || !define()) return false;
      } while (peek(',') && symbol(','));
    if (!symbol(')') || !symbol('{')) return false;
    while (!peek('}'))
      if (!statement()) return false;
    if (!symbol('}') || !symbol('-') || !symbol('>') || !symbol('(')) return false;
    do {
      if (!used()) return false;
    } while (peek(',') && symbol(','));
    return symbol(')') && symbol(';');
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string need_;
  std::set<std::string> defined_;
};

}  // namespace

bool fake_check_grammar(const char* mil, size_t mil_bytes, char* why, size_t why_bytes) {
  Reader reader({mil, mil_bytes});
  if (reader.program()) return true;
  std::snprintf(why, why_bytes, "InvalidMILProgram: %s", reader.why().c_str());
  return false;
}
