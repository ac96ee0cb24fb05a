"""Whether a regular expression is one that Go's `regexp/syntax` reads, and what Go says if not. Pure.

The kubelet checks the pattern of a node log query so, and then hands it to journalctl, which reads it as
PCRE2: what is found is not decided here. Look-around, back-references and possessive repetition are faults,
as with Go. Limits on the size of what a pattern would become are not kept, except those of repetition and
depth.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_MOST_REPEATS: Final = 1000
_DEEPEST: Final = 1000
_NO_END: Final = -1
_MAX_RUNE: Final = 0x10FFFF

_BAD_RANGE = "invalid character class range"
_BAD_ESCAPE = "invalid escape sequence"
_BAD_NAME = "invalid named capture"
_BAD_PERL = "invalid or unsupported Perl syntax"
_BAD_REPEAT = "invalid nested repetition operator"
_BAD_COUNT = "invalid repeat count"
_BAD_UTF8 = "invalid UTF-8"
_NO_BRACKET = "missing closing ]"
_NO_PAREN = "missing closing )"
_NO_ARGUMENT = "missing argument to repetition operator"
_TRAILING = "trailing backslash at end of expression"
_PAREN = "unexpected )"
_DEEP = "expression nests too deeply"

_POSIX: Final = "alnum alpha ascii blank cntrl digit graph lower print punct space upper word xdigit"
# Categories, their long names and scripts, spelled as `_canonical` does.
_UNICODE: Final = """
    Any Ascii Assigned C Cc Cf Cn Co Cs L Lc Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi Po Ps
    S Sc Sk Sm So Z Zl Zp Zs Casedletter Closepunctuation Cntrl Combiningmark Connectorpunctuation
    Control Currencysymbol Dashpunctuation Decimalnumber Digit Enclosingmark Finalpunctuation Format
    Initialpunctuation Letter Letternumber Lineseparator Lowercaseletter Mark Mathsymbol Modifierletter
    Modifiersymbol Nonspacingmark Number Openpunctuation Other Otherletter Othernumber Otherpunctuation
    Othersymbol Paragraphseparator Privateuse Punct Punctuation Separator Spaceseparator Spacingmark
    Surrogate Symbol Titlecaseletter Unassigned Uppercaseletter Adlam Ahom Anatolianhieroglyphs Arabic
    Armenian Avestan Balinese Bamum Bassavah Batak Bengali Beriaerfe Bhaiksuki Bopomofo Brahmi Braille
    Buginese Buhid Canadianaboriginal Carian Caucasianalbanian Chakma Cham Cherokee Chorasmian Common
    Coptic Cuneiform Cypriot Cyprominoan Cyrillic Deseret Devanagari Divesakuru Dogra Duployan
    Egyptianhieroglyphs Elbasan Elymaic Ethiopic Garay Georgian Glagolitic Gothic Grantha Greek Gujarati
    Gunjalagondi Gurmukhi Gurungkhema Han Hangul Hanifirohingya Hanunoo Hatran Hebrew Hiragana
    Imperialaramaic Inherited Inscriptionalpahlavi Inscriptionalparthian Javanese Kaithi Kannada
    Katakana Kawi Kayahli Kharoshthi Khitansmallscript Khmer Khojki Khudawadi Kiratrai Lao Latin Lepcha
    Limbu Lineara Linearb Lisu Lycian Lydian Mahajani Makasar Malayalam Mandaic Manichaean Marchen
    Masaramgondi Medefaidrin Meeteimayek Mendekikakui Meroiticcursive Meroitichieroglyphs Miao Modi
    Mongolian Mro Multani Myanmar Nabataean Nagmundari Nandinagari Newa Newtailue Nko Nushu
    Nyiakengpuachuehmong Ogham Olchiki Oldhungarian Olditalic Oldnortharabian Oldpermic Oldpersian
    Oldsogdian Oldsoutharabian Oldturkic Olduyghur Olonal Oriya Osage Osmanya Pahawhhmong Palmyrene
    Paucinhau Phagspa Phoenician Psalterpahlavi Rejang Runic Samaritan Saurashtra Sharada Shavian
    Siddham Sidetic Signwriting Sinhala Sogdian Sorasompeng Soyombo Sundanese Sunuwar Sylotinagri Syriac
    Tagalog Tagbanwa Taile Taitham Taiviet Taiyo Takri Tamil Tangsa Tangut Telugu Thaana Thai Tibetan
    Tifinagh Tirhuta Todhri Tolongsiki Toto Tulutigalari Ugaritic Vai Vithkuqi Wancho Warangciti Yezidi
    Yi Zanabazarsquare
    """
_POSIX_CLASSES: Final = frozenset(_POSIX.split())
_UNICODE_CLASSES: Final = frozenset(_UNICODE.split())


class _Fault(Exception):
    def __init__(self, code: str, expression: str) -> None:
        super().__init__(f"error parsing regexp: {code}: `{expression}`")


class _Node(NamedTuple):
    """Part of an expression: how often it may repeat what is in it, and how deep it is."""

    repeats: int = 1
    height: int = 1


_LEAF = _Node()


class _Group:
    """An open parenthesis, or the whole expression."""

    def __init__(self, captures: bool) -> None:
        self.captures = captures
        self.branches: list[_Node] = []
        self.parts: list[_Node] = []

    def end_branch(self) -> None:
        self.branches.append(_joined(self.parts))
        self.parts = []


def _joined(parts: list[_Node]) -> _Node:
    if len(parts) < 2:
        return parts[0] if parts else _LEAF
    return _Node(max(p.repeats for p in parts), 1 + max(p.height for p in parts))


def fault(pattern: str) -> str | None:
    """What Go says about a pattern that it does not read; None for one that it does."""
    try:
        _Parser(pattern).run()
    except _Fault as found:
        return str(found)
    return None


class _Parser:
    """Reads a pattern from left to right; the first fault ends it."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self._open = [_Group(False)]

    def run(self) -> None:
        """Raises _Fault."""
        repeated = _NO_END  # where the last repetition began, if it was right before
        while self._at < len(self._text):
            start, repeated_now = self._at, _NO_END
            match self._text[start]:
                case "(":
                    self._left()
                case ")":
                    self._right()
                case "|":
                    self._at += 1
                    self._open[-1].end_branch()
                case "[":
                    self._class()
                    self._push(_LEAF)
                case "*" | "+" | "?":
                    self._at += 1
                    self._repeat(start, repeated, None)
                    repeated_now = start
                case "{":
                    if self._counted(start, repeated):
                        repeated_now = start
                case "\\":
                    self._escaped()
                case _:
                    self._rune()
                    self._push(_LEAF)
            repeated = repeated_now
        if len(self._open) > 1:
            raise _Fault(_NO_PAREN, self._text)

    def _push(self, node: _Node) -> None:
        if node.height > _DEEPEST:
            raise _Fault(_DEEP, self._text)
        self._open[-1].parts.append(node)

    def _rune(self) -> str:
        """The next character, "" at the end."""
        character = self._text[self._at : self._at + 1]
        if "\ud800" <= character <= "\udfff":  # a byte that is part of no character
            raise _Fault(_BAD_UTF8, self._text[self._at :])
        self._at += len(character)
        return character

    def _check_utf8(self, start: int, end: int) -> None:
        at, self._at = self._at, start
        while self._at < end:
            self._rune()
        self._at = at

    # Groups

    def _left(self) -> None:
        if not self._text.startswith("(?", self._at):
            self._at += 1
            self._open.append(_Group(True))
            return
        start, rest = self._at, len(self._text) - self._at
        if rest > 4 and self._text.startswith("P<", start + 2):
            self._named(start, start + 4)
        elif rest > 3 and self._text.startswith("<", start + 2):
            self._named(start, start + 3)
        else:
            self._flags(start)

    def _named(self, start: int, name_at: int) -> None:
        end = self._text.find(">", start)
        if end < 0:
            self._check_utf8(start, len(self._text))
            raise _Fault(_BAD_NAME, self._text[start:])
        self._check_utf8(name_at, end)
        name = self._text[name_at:end]
        if not name or not all(c == "_" or _is_word(c) for c in name):
            raise _Fault(_BAD_NAME, self._text[start : end + 1])
        self._at = end + 1
        self._open.append(_Group(True))

    def _flags(self, start: int) -> None:
        """`(?i)` for what follows, `(?i-s:…)` for a group."""
        self._at = start + 2
        negative = seen = False
        while character := self._rune():
            if character in "imsU":
                seen = True
            elif character == "-" and not negative:
                negative, seen = True, False
            elif character in ":)" and (seen or not negative):
                if character == ":":
                    self._open.append(_Group(False))
                return
            else:
                break
        raise _Fault(_BAD_PERL, self._text[start : self._at])

    def _right(self) -> None:
        if len(self._open) < 2:
            raise _Fault(_PAREN, self._text)
        self._at += 1
        group = self._open.pop()
        group.end_branch()
        inner = _joined(group.branches)
        self._push(_Node(inner.repeats, inner.height + 1) if group.captures else inner)

    # Repetition

    def _counted(self, start: int, repeated: int) -> bool:
        """`{2,5}`; whether it is one, for otherwise the brace stands for itself."""
        self._at += 1
        if (count := self._count()) is None:
            self._at = start + 1
            self._push(_LEAF)
            return False
        least, most = count
        if max(least, most) > _MOST_REPEATS or 0 <= most < least:
            raise _Fault(_BAD_COUNT, self._text[start : self._at])
        self._repeat(start, repeated, count)
        return True

    def _count(self) -> tuple[int, int] | None:
        """The numbers in braces; the second is `_NO_END` for none."""
        least = self._number()
        if least is None:
            return None
        most = least
        if self._text.startswith(",", self._at):
            self._at += 1
            if self._text.startswith("}", self._at):
                most = _NO_END
            else:
                number = self._number()
                if number is None:
                    return None
                most = number
        if not self._text.startswith("}", self._at):
            return None
        self._at += 1
        return least, most

    def _number(self) -> int | None:
        """A decimal number without leading zeros; one that is far too large is cut off."""
        end = self._at
        while end < len(self._text) and "0" <= self._text[end] <= "9":
            end += 1
        digits = self._text[self._at : end]
        if not digits or (len(digits) > 1 and digits[0] == "0"):
            return None
        self._at = end
        return int(digits[:9])

    def _repeat(self, start: int, repeated: int, count: tuple[int, int] | None) -> None:
        """Repeats what stands before; `start` is where the operator began."""
        if self._text.startswith("?", self._at):
            self._at += 1
        if repeated != _NO_END:
            raise _Fault(_BAD_REPEAT, self._text[repeated : self._at])
        parts = self._open[-1].parts
        if not parts:
            raise _Fault(_NO_ARGUMENT, self._text[start : self._at])
        inner = parts.pop()
        if count is None:
            self._push(_Node(inner.repeats, inner.height + 1))
            return
        least, most = count
        repeats = 1 if most == 0 else inner.repeats * max(1, least if most < 0 else most)
        self._push(_Node(repeats, inner.height + 1))
        if max(least, most) >= 2 and repeats > _MOST_REPEATS:
            raise _Fault(_BAD_COUNT, self._text[start : self._at])

    # Escapes and classes

    def _escaped(self) -> None:
        start = self._at
        following = self._text[start + 1 : start + 2]
        if following == "C":
            raise _Fault(_BAD_ESCAPE, "\\C")
        if following == "Q":
            self._quoted()
            return
        if following and following in "AbBz":
            self._at += 2
        elif not self._shorthand():
            self._escape()
        self._push(_LEAF)

    def _quoted(self) -> None:
        end = self._text.find("\\E", self._at + 2)
        stop = len(self._text) if end < 0 else end
        self._check_utf8(self._at + 2, stop)
        for _ in range(self._at + 2, stop):
            self._push(_LEAF)
        self._at = stop if end < 0 else end + 2

    def _shorthand(self) -> bool:
        """A class like `\\d` or `\\p{Greek}`; whether there is one."""
        start = self._at
        if self._text[start] != "\\" or start + 1 >= len(self._text):
            return False
        letter = self._text[start + 1]
        if letter in "dDsSwW":
            self._at += 2
            return True
        if letter not in "pP":
            return False
        self._at += 2
        character = self._rune()
        if character != "{":
            name = character
        else:
            end = self._text.find("}", start)
            if end < 0:
                self._check_utf8(start, len(self._text))
                raise _Fault(_BAD_RANGE, self._text[start:])
            name = self._text[start + 3 : end]
            self._check_utf8(start + 3, end)
            self._at = end + 1
        if _canonical(name.removeprefix("^")) not in _UNICODE_CLASSES:
            raise _Fault(_BAD_RANGE, self._text[start : self._at])
        return True

    def _class(self) -> None:
        start = self._at
        self._at += 1
        if self._text.startswith("^", self._at):
            self._at += 1
        first = True
        while first or not self._text.startswith("]", self._at):
            first = False
            if self._at < len(self._text) and (self._posix() or self._shorthand()):
                continue
            begun = self._at
            low = self._class_character(start)
            following = self._text[self._at + 1 : self._at + 2]
            if self._text.startswith("-", self._at) and following not in ("", "]"):
                self._at += 1
                if self._class_character(start) < low:
                    raise _Fault(_BAD_RANGE, self._text[begun : self._at])
        self._at += 1

    def _posix(self) -> bool:
        """A class like `[:alpha:]` within another; whether there is one."""
        if not self._text.startswith("[:", self._at):
            return False
        end = self._text.find(":]", self._at + 2)
        if end < 0:
            return False
        name = self._text[self._at + 2 : end].removeprefix("^")
        start, self._at = self._at, end + 2
        if name not in _POSIX_CLASSES:
            raise _Fault(_BAD_RANGE, self._text[start : self._at])
        return True

    def _class_character(self, class_start: int) -> int:
        if self._at >= len(self._text):
            raise _Fault(_NO_BRACKET, self._text[class_start:])
        return self._escape() if self._text[self._at] == "\\" else ord(self._rune())

    def _escape(self) -> int:
        """The character an escape stands for."""
        start = self._at
        self._at += 1
        if self._at >= len(self._text):
            raise _Fault(_TRAILING, "")
        character = self._rune()
        if character == "x":
            value = self._hexadecimal()
        elif character in "01234567":
            value = self._octal(character)
        elif character in "afnrtv":
            value = ord("\a\f\n\r\t\v"["afnrtv".index(character)])
        else:
            value = ord(character) if character.isascii() and not _is_word(character) else None
        if value is None:
            raise _Fault(_BAD_ESCAPE, self._text[start : self._at])
        return value

    def _octal(self, first: str) -> int | None:
        """Up to three digits; one alone, but for 0, would be a back-reference."""
        digits = first
        while len(digits) < 3 and self._text[self._at : self._at + 1] in tuple("01234567"):
            digits += self._text[self._at]
            self._at += 1
        return int(digits, 8) if len(digits) > 1 or first == "0" else None

    def _hexadecimal(self) -> int | None:
        """`7f` or `{10ffff}`."""
        if self._at >= len(self._text):
            return None
        first = self._rune()
        if first != "{":
            digits = first + self._rune()
            return int(digits, 16) if len(digits) == 2 and all(map(_is_hex, digits)) else None
        value = count = 0
        while (character := self._rune()) and _is_hex(character):
            value, count = value * 16 + int(character, 16), count + 1
            if value > _MAX_RUNE:
                return None
        return value if character == "}" and count else None


def _is_word(character: str) -> bool:
    return character.isascii() and character.isalnum()


def _is_hex(character: str) -> bool:
    return character in "0123456789abcdefABCDEF"


def _canonical(name: str) -> str:
    """How a name is looked up: case and separators do not count."""
    letters = "".join(c for c in name if c not in "_- ")
    return letters[:1].translate(_UPPER) + letters[1:].translate(_LOWER)


_UPPER: Final = {code: code - 32 for code in range(ord("a"), ord("z") + 1)}
_LOWER: Final = {code: code + 32 for code in range(ord("A"), ord("Z") + 1)}
