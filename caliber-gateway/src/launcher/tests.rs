//! Tests of starting and stopping children.
