//! What both kinds of message share: random choices, lines that are nearly right, bodies in chunks.

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Less than `bound`, which is at least 1.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    pub fn one_of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

/// A line of a head, in its parts, so that each can be spoilt.
#[derive(Clone)]
pub struct Field {
    pub name: Vec<u8>,
    pub colon: Vec<u8>,
    pub value: Vec<u8>,
    pub end: Vec<u8>,
}

pub fn field(name: &str, value: &str) -> Field {
    Field { name: name.into(), colon: b": ".to_vec(), value: value.into(), end: b"\r\n".to_vec() }
}

impl Field {
    pub fn write(&self, out: &mut Vec<u8>) {
        for part in [&self.name, &self.colon, &self.value, &self.end] {
            out.extend_from_slice(part);
        }
    }
}

/// Ends of a line, and what some readers take for one.
pub const ENDS: &[&[u8]] = &[
    b"\n",
    b"\r",
    b"\r\r\n",
    b"\n\r",
    b"",
    b"\r\n ",
    b"\r\n\t",
    b"\x0b\r\n",
    b"\0\r\n",
    b" \r\n",
    b"\r\n\r\n",
    b"\x85",
];
const COLONS: &[&[u8]] =
    &[b":", b" :", b"\t:", b": \t ", b":\t", b":\x0b", b":\0", b" ", b"", b"::", b":\r\n ", b"\x0c:", b"=", b"\r\n:"];
const LENGTHS: &[&str] = &[
    "5",
    "0",
    "05",
    "+5",
    "-5",
    "5 ",
    "5,5",
    "5, 6",
    "0x5",
    "5.0",
    "\u{665}",
    "5;",
    "",
    "18446744073709551616",
    "18446744073709551615",
    "5\u{b}",
    "5 5",
    "\"5\"",
    "1e1",
    "5\t",
    "00000000000000000000000005",
    "5\0",
    "_5",
];
const CODINGS: &[&str] = &[
    "chunked",
    "Chunked",
    "CHUNKED",
    "chunked ",
    "chunked,",
    ", chunked",
    "identity",
    "gzip, chunked",
    "chunked, gzip",
    "chunked, chunked",
    "chunked;q=1",
    "xchunked",
    "chunked\u{b}",
    "\"chunked\"",
    "chunked\0",
    "trailers",
    "",
    "gzip",
    "chun\tked",
    "chunked identity",
    "cow",
    "c\u{f7}hunked",
];
const SIZES: &[&str] = &[
    "5",
    "05",
    " 5",
    "5 ",
    "5\t",
    "0x5",
    "+5",
    "-5",
    "5;",
    "5;a",
    "5;a=",
    "5;a=b",
    "5;a=\"b\"",
    "5;a=\"b",
    "5 ;a",
    "5; a = b",
    "5;a\0",
    "fffffffffffffffff",
    "ffffffffffffffff",
    "7fffffffffffffff",
    "5\u{b}",
    "",
    "g",
    "5,5",
    "5.",
    "5;\u{7f}",
    "0005",
    "5;a=\"\\\"\"",
    "5;a=\"x\n\"",
    "5\r",
    "A",
    "5h",
    "0",
    "00000000000000005",
];
const TRAILERS: &[&str] = &[
    "X: y\r\n",
    "Content-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\n",
    "Host: evil\r\n",
    "X : y\r\n",
    " fold\r\n",
    "X: y\n",
    "X\r\n",
    ": y\r\n",
    "X: a\rb\r\n",
    "X: a\0b\r\n",
    "\r",
    "\n",
    "GET /evil HTTP/1.1\r\nHost: t\r\n",
];

/// Spoils one of the lines: its separator, its end, its name.
pub fn spoil_line(random: &mut Random, fields: &mut [Field]) {
    if fields.is_empty() {
        return;
    }
    let at = random.below(fields.len());
    let field = &mut fields[at];
    match random.below(4) {
        0 => field.colon = random.one_of(COLONS).to_vec(),
        1 => field.end = random.one_of(ENDS).to_vec(),
        2 => spoil_name(random, &mut field.name),
        _ => {
            let at = random.below(field.value.len() + 1);
            field.value.insert(at, control(random));
        }
    }
}

pub fn spoil_name(random: &mut Random, name: &mut Vec<u8>) {
    let at = random.below(name.len() + 1);
    match random.below(5) {
        0 => name.iter_mut().for_each(|byte| *byte = byte.to_ascii_uppercase()),
        1 => name.iter_mut().filter(|byte| **byte == b'-').for_each(|byte| *byte = b'_'),
        2 => name.insert(at, random.one_of(b" \t\0\x0b\x7f\x80\"(,;/[\xc5")),
        3 => name.push(random.one_of(b" \t\r\x0b-_:")),
        _ => name.clear(),
    }
}

/// A byte that has no business in a head, or seldom.
pub fn control(random: &mut Random) -> u8 {
    random.one_of(b"\0\x01\x08\t\n\x0b\x0c\r\x1b \x7f\x80\x85\xa0\xff")
}

/// Adds or changes fields about the body's length: doubled, contradicting, hidden, named away.
pub fn spoil_framing(random: &mut Random, fields: &mut Vec<Field>) {
    let at = random.below(fields.len() + 1);
    let length = random.one_of(LENGTHS);
    let coding = random.one_of(CODINGS);
    let added = match random.below(9) {
        0 | 1 => field("Content-Length", length),
        2 | 3 => field("Transfer-Encoding", coding),
        4 => {
            field("Connection", random.one_of(&["Content-Length", "Transfer-Encoding, Host", "close, X", "Host", ",,"]))
        }
        5 => {
            let mut hidden = field("X", "y");
            hidden.end = [random.one_of(ENDS), b"Content-Length: 5\r\n"].concat();
            hidden
        }
        6 => {
            let mut hidden = field("Transfer-Encoding", coding);
            spoil_name(random, &mut hidden.name);
            hidden
        }
        7 => {
            let mut hidden = field("Content-Length", length);
            hidden.colon = random.one_of(COLONS).to_vec();
            hidden
        }
        _ => match fields.is_empty() {
            true => return,
            false => fields[random.below(fields.len())].clone(),
        },
    };
    fields.insert(at, added);
}

/// A body in chunks, right or with faults.
pub fn chunks(random: &mut Random, payload: &[u8], faults: usize) -> Vec<u8> {
    let mut lines: Vec<Vec<u8>> = Vec::new();
    for chunk in payload.chunks(5) {
        lines.push(format!("{:x}", chunk.len()).into_bytes());
        lines.push(b"\r\n".to_vec());
        lines.push(chunk.to_vec());
        lines.push(b"\r\n".to_vec());
    }
    lines.push(b"0".to_vec());
    lines.push(b"\r\n".to_vec());
    if random.once_in(4) {
        lines.push(b"X-Trailer: t\r\n".to_vec());
    }
    lines.push(b"\r\n".to_vec());
    for _ in 0..faults {
        let at = random.below(lines.len());
        match random.below(6) {
            0 | 1 => lines[at - at % 4] = random.one_of(SIZES).into(),
            2 => lines[at] = random.one_of(ENDS).to_vec(),
            3 => lines.insert(lines.len() - 1, random.one_of(TRAILERS).into()),
            4 => drop(lines.remove(at)),
            _ => lines[at].push(control(random)),
        }
    }
    lines.concat()
}

/// Faults that know nothing of the grammar: a byte changed, put in or left out, a piece twice, an early end.
pub fn spoil_bytes(random: &mut Random, bytes: &mut Vec<u8>) {
    if bytes.is_empty() {
        return;
    }
    let at = random.below(bytes.len());
    match random.below(6) {
        0 => bytes[at] = random.next() as u8,
        1 => bytes.insert(at, control(random)),
        2 => drop(bytes.remove(at)),
        3 => {
            let end = (at + 1 + random.below(20)).min(bytes.len());
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        4 => {
            let end = (at + 1 + random.below(8)).min(bytes.len());
            bytes.drain(at..end);
        }
        _ => bytes.truncate(at.max(1)),
    }
}
