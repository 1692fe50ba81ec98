//! Tests of finding, checking and dialling endpoints.
