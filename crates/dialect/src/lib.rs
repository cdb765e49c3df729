//! dialect
