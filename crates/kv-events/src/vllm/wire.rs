//! Bounded reading of msgpack: one value's head at a time, and skipping of whole values.
//!
//! A length is believed only as far as the bytes that are left could hold it, and nothing here recurses: nesting is a
//! counter with a limit.

use rmp::Marker;

/// Deepest nesting inside one value that is still skipped. Events nest four deep.
const MAX_DEPTH: usize = 32;

/// The bytes are no msgpack, end too early, or nest too deeply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Broken(pub(super) &'static str);

/// A value without its children.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Head<'a> {
    Nil,
    Unsigned(u64),
    Negative(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// That many values follow.
    Array(usize),
    /// That many pairs of values follow.
    Map(usize),
    /// A boolean or an extension: nothing that events use.
    Other,
}

/// A cursor over msgpack bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads one value's head; strings, bytes and extensions are taken whole.
    pub(super) fn head(&mut self) -> Result<Head<'a>, Broken> {
        Ok(match Marker::from_u8(self.number::<1>()?[0]) {
            Marker::FixPos(value) => Head::Unsigned(value.into()),
            Marker::FixNeg(value) => Head::Negative(value.into()),
            Marker::Null => Head::Nil,
            Marker::True | Marker::False => Head::Other,
            Marker::U8 => Head::Unsigned(u8::from_be_bytes(self.number()?).into()),
            Marker::U16 => Head::Unsigned(u16::from_be_bytes(self.number()?).into()),
            Marker::U32 => Head::Unsigned(u32::from_be_bytes(self.number()?).into()),
            Marker::U64 => Head::Unsigned(u64::from_be_bytes(self.number()?)),
            Marker::I8 => signed(i8::from_be_bytes(self.number()?).into()),
            Marker::I16 => signed(i16::from_be_bytes(self.number()?).into()),
            Marker::I32 => signed(i32::from_be_bytes(self.number()?).into()),
            Marker::I64 => signed(i64::from_be_bytes(self.number()?)),
            Marker::F32 => Head::Float(f32::from_be_bytes(self.number()?).into()),
            Marker::F64 => Head::Float(f64::from_be_bytes(self.number()?)),
            Marker::FixStr(len) => Head::Text(self.take(len.into())?),
            Marker::Str8 => Head::Text(self.sized::<1>()?),
            Marker::Str16 => Head::Text(self.sized::<2>()?),
            Marker::Str32 => Head::Text(self.sized::<4>()?),
            Marker::Bin8 => Head::Bytes(self.sized::<1>()?),
            Marker::Bin16 => Head::Bytes(self.sized::<2>()?),
            Marker::Bin32 => Head::Bytes(self.sized::<4>()?),
            Marker::FixArray(len) => self.array(len.into())?,
            Marker::Array16 => {
                let len = self.length::<2>()?;
                self.array(len)?
            }
            Marker::Array32 => {
                let len = self.length::<4>()?;
                self.array(len)?
            }
            Marker::FixMap(len) => self.map(len.into())?,
            Marker::Map16 => {
                let len = self.length::<2>()?;
                self.map(len)?
            }
            Marker::Map32 => {
                let len = self.length::<4>()?;
                self.map(len)?
            }
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => {
                let len = self.length::<1>()?;
                self.extension(len)?
            }
            Marker::Ext16 => {
                let len = self.length::<2>()?;
                self.extension(len)?
            }
            Marker::Ext32 => {
                let len = self.length::<4>()?;
                self.extension(len)?
            }
            Marker::Reserved => return Err(Broken("the bytes are no msgpack")),
        })
    }

    /// Steps over one whole value and returns its bytes.
    pub(super) fn value(&mut self) -> Result<&'a [u8], Broken> {
        let start = self.rest;
        // Values still to come at each level that is open.
        let mut open = [0usize; MAX_DEPTH];
        let mut depth = 0;
        loop {
            let children = match self.head()? {
                Head::Array(len) => len,
                Head::Map(pairs) => pairs * 2,
                _ => 0,
            };
            if children > 0 {
                *open.get_mut(depth).ok_or(Broken("values nest too deeply"))? = children;
                depth += 1;
                continue;
            }
            // The value is complete, and with it every level it was the last of.
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
        }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Broken> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Broken("the bytes end too early"))?;
        self.rest = rest;
        Ok(taken)
    }

    fn number<const LEN: usize>(&mut self) -> Result<[u8; LEN], Broken> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Broken("the bytes end too early"))?;
        self.rest = rest;
        Ok(*taken)
    }

    /// A length of that many bytes.
    fn length<const LEN: usize>(&mut self) -> Result<usize, Broken> {
        Ok(self.number::<LEN>()?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)))
    }

    fn sized<const LEN: usize>(&mut self) -> Result<&'a [u8], Broken> {
        let len = self.length::<LEN>()?;
        self.take(len)
    }

    fn array(&self, len: usize) -> Result<Head<'a>, Broken> {
        // A value takes at least one byte.
        if len > self.rest.len() { Err(Broken("the bytes end too early")) } else { Ok(Head::Array(len)) }
    }

    fn map(&self, pairs: usize) -> Result<Head<'a>, Broken> {
        if pairs > self.rest.len() / 2 { Err(Broken("the bytes end too early")) } else { Ok(Head::Map(pairs)) }
    }

    fn extension(&mut self, len: usize) -> Result<Head<'a>, Broken> {
        self.take(1)?;
        self.take(len)?;
        Ok(Head::Other)
    }
}

fn signed(value: i64) -> Head<'static> {
    u64::try_from(value).map_or(Head::Negative(value), Head::Unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nesting_is_limited_and_costs_no_stack() {
        let nested = |depth: usize| [vec![0x91; depth], vec![0xc0]].concat();
        assert!(Reader::new(&nested(MAX_DEPTH)).value().is_ok());
        assert_eq!(Reader::new(&nested(MAX_DEPTH + 1)).value(), Err(Broken("values nest too deeply")));
        assert!(Reader::new(&nested(1_000_000)).value().is_err());
    }

    #[test]
    fn a_value_is_stepped_over_exactly() {
        // {"a": [1, [], {}], nil: ext} and a byte behind it
        let bytes = [0x82, 0xa1, b'a', 0x93, 1, 0x90, 0x80, 0xc0, 0xd4, 0, 9, 0x2a];
        let mut reader = Reader::new(&bytes);
        assert_eq!(reader.value().unwrap().len(), bytes.len() - 1);
        assert_eq!(reader.head(), Ok(Head::Unsigned(42)));
        assert!(reader.is_at_end());
    }

    #[test]
    fn lengths_beyond_the_bytes_are_refused_at_the_head() {
        for bytes in [
            &[0xdd, 0xff, 0xff, 0xff, 0xff, 0][..],
            &[0xdf, 0x7f, 0xff, 0xff, 0xff, 0, 0],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0xff, 0xff, 0xff, 0xff],
            &[0xc9, 0xff, 0xff, 0xff, 0xff, 1],
            &[0x81, 0],
        ] {
            assert!(Reader::new(bytes).head().is_err(), "{bytes:x?}");
        }
    }
}
