//! The indexes by name.

/// An index under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Implementation {
    /// This project's index.
    Ours,
    /// `ChainIndex`, the index of the SMG gateway.
    SmgChain,
    /// `ConcurrentRadixTreeCompressed`, Dynamo's default.
    DynamoCrtc,
    /// `PositionalIndexer` with its binary search.
    DynamoPosBinary,
    /// `PositionalIndexer` with stride 32.
    DynamoPosStrided,
}

impl Implementation {
    /// The indexes compared by default.
    pub(crate) const DEFAULT: [Self; 3] = [Self::Ours, Self::SmgChain, Self::DynamoCrtc];

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::SmgChain => "smg-chain",
            Self::DynamoCrtc => "dynamo-crtc",
            Self::DynamoPosBinary => "dynamo-pos-binary",
            Self::DynamoPosStrided => "dynamo-pos-strided",
        }
    }

    /// The crate and its version.
    pub(crate) fn origin(self) -> &'static str {
        match self {
            Self::Ours => "warmroute",
            Self::SmgChain => "kv-index 2.0.0",
            Self::DynamoCrtc | Self::DynamoPosBinary | Self::DynamoPosStrided => {
                "dynamo-kv-router 1.6.1"
            }
        }
    }
}

/// Evaluates `$body` with `$Index` as the type of the contender.
macro_rules! with_index {
    ($contender:expr, $Index:ident => $body:expr) => {
        match $contender {
            $crate::index::Contender::Ours => {
                type $Index = $crate::index::Ours;
                $body
            }
            $crate::index::Contender::SmgChain => {
                type $Index = $crate::index::SmgChain;
                $body
            }
            $crate::index::Contender::DynamoCrtc => {
                type $Index = $crate::index::Lane<$crate::index::Compressed>;
                $body
            }
            $crate::index::Contender::DynamoPosBinary => {
                type $Index = $crate::index::Lane<$crate::index::Binary>;
                $body
            }
            $crate::index::Contender::DynamoPosStrided => {
                type $Index = $crate::index::Lane<$crate::index::Strided>;
                $body
            }
        }
    };
}

pub(crate) use with_index;
