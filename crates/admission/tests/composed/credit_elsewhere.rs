use super::support::credit_elsewhere;

earmark_admission::conformance!(credit_elsewhere);
