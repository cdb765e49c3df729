//! Bounded reading of msgpack: one value's head at a time, and skipping of whole values.
//!
//! A length is accepted only if the remaining bytes can hold it, and nothing here recurses: nesting
//! is a counter with a limit.

use rmp::Marker;

/// Deepest nesting inside one value that is skipped. Events nest four deep.
const MAX_DEPTH: usize = 32;

/// The bytes are not msgpack, end too early, or nest too deeply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MsgpackError(pub(crate) &'static str);

/// A value without its children.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MsgpackHead<'a> {
    Nil,
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// This many values follow.
    Array(usize),
    /// This many pairs of values follow.
    Map(usize),
    /// A boolean or an extension, which events never use.
    Other,
}

/// A cursor over msgpack bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MsgpackReader<'a> {
    rest: &'a [u8],
}

impl<'a> MsgpackReader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads one value's head; strings, bytes and extensions are read whole.
    pub(crate) fn head(&mut self) -> Result<MsgpackHead<'a>, MsgpackError> {
        Ok(match Marker::from_u8(self.number::<1>()?[0]) {
            Marker::FixPos(value) => MsgpackHead::Unsigned(value.into()),
            Marker::FixNeg(value) => MsgpackHead::Negative(value.into()),
            Marker::Null => MsgpackHead::Nil,
            Marker::True | Marker::False => MsgpackHead::Other,
            Marker::U8 => MsgpackHead::Unsigned(u8::from_be_bytes(self.number()?).into()),
            Marker::U16 => MsgpackHead::Unsigned(u16::from_be_bytes(self.number()?).into()),
            Marker::U32 => MsgpackHead::Unsigned(u32::from_be_bytes(self.number()?).into()),
            Marker::U64 => MsgpackHead::Unsigned(u64::from_be_bytes(self.number()?)),
            Marker::I8 => signed(i8::from_be_bytes(self.number()?).into()),
            Marker::I16 => signed(i16::from_be_bytes(self.number()?).into()),
            Marker::I32 => signed(i32::from_be_bytes(self.number()?).into()),
            Marker::I64 => signed(i64::from_be_bytes(self.number()?)),
            Marker::F32 => MsgpackHead::Float(f32::from_be_bytes(self.number()?).into()),
            Marker::F64 => MsgpackHead::Float(f64::from_be_bytes(self.number()?)),
            Marker::FixStr(len) => MsgpackHead::Text(self.take(len.into())?),
            Marker::Str8 => MsgpackHead::Text(self.sized::<1>()?),
            Marker::Str16 => MsgpackHead::Text(self.sized::<2>()?),
            Marker::Str32 => MsgpackHead::Text(self.sized::<4>()?),
            Marker::Bin8 => MsgpackHead::Bytes(self.sized::<1>()?),
            Marker::Bin16 => MsgpackHead::Bytes(self.sized::<2>()?),
            Marker::Bin32 => MsgpackHead::Bytes(self.sized::<4>()?),
            Marker::FixArray(len) => self.array(len.into())?,
            Marker::Array16 => self.length::<2>().and_then(|len| self.array(len))?,
            Marker::Array32 => self.length::<4>().and_then(|len| self.array(len))?,
            Marker::FixMap(len) => self.map(len.into())?,
            Marker::Map16 => self.length::<2>().and_then(|len| self.map(len))?,
            Marker::Map32 => self.length::<4>().and_then(|len| self.map(len))?,
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => self.length::<1>().and_then(|len| self.extension(len))?,
            Marker::Ext16 => self.length::<2>().and_then(|len| self.extension(len))?,
            Marker::Ext32 => self.length::<4>().and_then(|len| self.extension(len))?,
            Marker::Reserved => return Err(MsgpackError("the bytes are no msgpack")),
        })
    }

    /// Skips one whole value and returns its bytes.
    pub(crate) fn value(&mut self) -> Result<&'a [u8], MsgpackError> {
        let start = self.rest;
        let mut children = self.children()?;
        if children == 0 {
            return Ok(&start[..start.len() - self.rest.len()]);
        }
        // Remaining values at each open level.
        let mut open = [0usize; MAX_DEPTH];
        let mut depth = 0;
        loop {
            if children > 0 {
                let last = children - self.step_over_numbers(children - 1);
                *open
                    .get_mut(depth)
                    .ok_or(MsgpackError("values nest too deeply"))? = last;
                depth += 1;
                children = self.children()?;
                continue;
            }
            // The value is complete, and with it every level that it was the last value of.
            loop {
                let Some(level) = depth.checked_sub(1) else {
                    return Ok(&start[..start.len() - self.rest.len()]);
                };
                open[level] -= 1;
                if open[level] > 0 {
                    break;
                }
                depth = level;
            }
            children = self.children()?;
        }
    }

    /// Skips up to this many numbers, or other values whose length follows from their first byte;
    /// returns how many. It stops in front of any other value. Tokens are the bulk of the data.
    fn step_over_numbers(&mut self, most: usize) -> usize {
        for stepped in 0..most {
            let length = self
                .rest
                .first()
                .map_or(0, |first| LENGTHS[usize::from(*first)]);
            match self.rest.get(usize::from(length)..) {
                Some(rest) if length > 0 => self.rest = rest,
                _ => return stepped,
            }
        }
        most
    }

    /// Reads a number of at most 32 bits in the forms that publishers write; `None`: it is
    /// something else, and nothing was read.
    #[inline]
    pub(crate) fn small_number(&mut self) -> Option<u32> {
        let (number, rest) = match *self.rest {
            [number @ 0..0x80, ref rest @ ..] | [0xcc, number, ref rest @ ..] => {
                (number.into(), rest)
            }
            [0xcd, a, b, ref rest @ ..] => (u16::from_be_bytes([a, b]).into(), rest),
            [0xce, a, b, c, d, ref rest @ ..] => (u32::from_be_bytes([a, b, c, d]), rest),
            _ => return None,
        };
        self.rest = rest;
        Some(number)
    }

    /// Reads a head and returns how many values belong to it.
    fn children(&mut self) -> Result<usize, MsgpackError> {
        Ok(match self.head()? {
            MsgpackHead::Array(len) => len,
            MsgpackHead::Map(pairs) => pairs * 2,
            _ => 0,
        })
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], MsgpackError> {
        let (taken, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(MsgpackError("the bytes end too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const LEN: usize>(&mut self) -> Result<[u8; LEN], MsgpackError> {
        let (taken, rest) = self
            .rest
            .split_first_chunk()
            .ok_or(MsgpackError("the bytes end too early"))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Reads a length of this many bytes.
    fn length<const LEN: usize>(&mut self) -> Result<usize, MsgpackError> {
        Ok(self
            .number::<LEN>()?
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn sized<const LEN: usize>(&mut self) -> Result<&'a [u8], MsgpackError> {
        let len = self.length::<LEN>()?;
        self.take(len)
    }

    fn array(&self, len: usize) -> Result<MsgpackHead<'a>, MsgpackError> {
        // A value takes at least one byte.
        if len > self.rest.len() {
            Err(MsgpackError("the bytes end too early"))
        } else {
            Ok(MsgpackHead::Array(len))
        }
    }

    fn map(&self, pairs: usize) -> Result<MsgpackHead<'a>, MsgpackError> {
        if pairs > self.rest.len() / 2 {
            Err(MsgpackError("the bytes end too early"))
        } else {
            Ok(MsgpackHead::Map(pairs))
        }
    }

    fn extension(&mut self, len: usize) -> Result<MsgpackHead<'a>, MsgpackError> {
        self.take(1)?;
        self.take(len)?;
        Ok(MsgpackHead::Other)
    }
}

/// Bytes of a value by its first byte; 0 where the first byte does not determine them.
const LENGTHS: [u8; 256] = {
    let mut lengths = [0; 256];
    let mut first = 0;
    while first < lengths.len() {
        lengths[first] = match first {
            0..=0x7f | 0xc0 | 0xc2 | 0xc3 | 0xe0.. => 1,
            0xcc | 0xd0 => 2,
            0xcd | 0xd1 => 3,
            0xca | 0xce | 0xd2 => 5,
            0xcb | 0xcf | 0xd3 => 9,
            _ => 0,
        };
        first += 1;
    }
    lengths
};

fn signed(value: i64) -> MsgpackHead<'static> {
    u64::try_from(value).map_or(MsgpackHead::Negative(value), MsgpackHead::Unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_limited_and_uses_no_stack() {
        let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
        assert!(MsgpackReader::new(&nested(MAX_DEPTH)).value().is_ok());
        assert_eq!(
            MsgpackReader::new(&nested(MAX_DEPTH + 1)).value(),
            Err(MsgpackError("values nest too deeply"))
        );
        assert!(MsgpackReader::new(&nested(1_000_000)).value().is_err());
    }

    #[test]
    fn a_skipped_value_is_consumed_exactly() {
        // {"a": [1, [], {}], nil: ext} and one more byte
        let bytes = [
            0x82, 0xa1, b'a', 0x93, 1, 0x90, 0x80, 0xc0, 0xd4, 0, 9, 0x2a,
        ];
        let mut reader = MsgpackReader::new(&bytes);
        assert_eq!(reader.value().unwrap().len(), bytes.len() - 1);
        assert_eq!(reader.head(), Ok(MsgpackHead::Unsigned(42)));
        assert!(reader.is_at_end());
    }

    #[test]
    fn the_fast_paths_agree_with_the_general_one() {
        for first in 0..=u8::MAX {
            for behind in 0..10 {
                let bytes = [&[first][..], &vec![7; behind]].concat();
                let (mut long, mut short, mut over) = (
                    MsgpackReader::new(&bytes),
                    MsgpackReader::new(&bytes),
                    MsgpackReader::new(&bytes),
                );
                let head = long.head();
                if let Some(number) = short.small_number() {
                    assert_eq!(
                        (head, short.rest),
                        (Ok(MsgpackHead::Unsigned(number.into())), long.rest),
                        "{bytes:x?}"
                    );
                }
                if over.step_over_numbers(1) == 1 {
                    assert!(
                        matches!(head, Ok(head) if !matches!(head, MsgpackHead::Array(_) | MsgpackHead::Map(_))),
                        "{bytes:x?}"
                    );
                    assert_eq!(over.rest, long.rest, "{bytes:x?}");
                }
            }
        }
        let mut reader = MsgpackReader::new(&[0xcd, 1, 0, 5, 0xce, 0, 0]);
        assert_eq!(
            (reader.step_over_numbers(9), reader.rest.len()),
            (2, 3),
            "the third value is incomplete"
        );
    }

    #[test]
    fn lengths_beyond_the_input_are_refused_at_the_header() {
        for bytes in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff, 0][..],
            &[0xdf, 0x7f, 0xff, 0xff, 0xff, 0, 0],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0xff, 0xff, 0xff, 0xff],
            &[0xc9, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x81, 0],
        ] {
            assert!(MsgpackReader::new(bytes).head().is_err(), "{bytes:x?}");
        }
    }
}
