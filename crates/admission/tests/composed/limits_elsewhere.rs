use super::support::limits_elsewhere;

earmark_admission::conformance!(limits_elsewhere);
