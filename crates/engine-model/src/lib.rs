//! engine-model
