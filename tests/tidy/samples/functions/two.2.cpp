class Slot {
 public:
  Slot(int a)
      : a_(a) {
    if (a == 1) { use(1); }
    if (a == 2) { use(2); }
    if (a == 3) { use(3); }
    if (a == 4) { use(4); }
    if (a == 5) { use(5); }
    if (a == 6) { use(6); }
    if (a == 7) { use(7); }
    if (a == 8) { use(8); }
    if (a == 9) { use(9); }
    if (a == 10) { use(10); }
    if (a == 11) { use(11); }
    if (a == 12) { use(12); }
    if (a == 13) { use(13); }
    if (a == 14) { use(14); }
    if (a == 15) { use(15); }
    if (a == 16) { use(16); }
    if (a == 17) { use(17); }
    if (a == 18) { use(18); }
    if (a == 19) { use(19); }
    if (a == 20) { use(20); }
    if (a == 21) { use(21); }
    if (a == 22) { use(22); }
    if (a == 23) { use(23); }
    if (a == 24) { use(24); }
    if (a == 25) { use(25); }
    if (a == 26) { use(26); }
    if (a == 27) { use(27); }
    if (a == 28) { use(28); }
    if (a == 29) { use(29); }
    if (a == 30) { use(30); }
    if (a == 31) { use(31); }
    if (a == 32) { use(32); }
    if (a == 33) { use(33); }
    if (a == 34) { use(34); }
    if (a == 35) { use(35); }
    if (a == 36) { use(36); }
    if (a == 37) { use(37); }
    if (a == 38) { use(38); }
    if (a == 39) { use(39); }
    if (a == 40) { use(40); }
    if (a == 41) { use(41); }
    if (a == 42) { use(42); }
    if (a == 43) { use(43); }
    if (a == 44) { use(44); }
    if (a == 45) { use(45); }
    if (a == 46) { use(46); }
    if (a == 47) { use(47); }
    if (a == 48) { use(48); }
    if (a == 49) { use(49); }
    if (a == 50) { use(50); }
    if (a == 51) { use(51); }
    if (a == 52) { use(52); }
    if (a == 53) { use(53); }
    if (a == 54) { use(54); }
    if (a == 55) { use(55); }
    if (a == 56) { use(56); }
    if (a == 57) { use(57); }
    if (a == 58) { use(58); }
    if (a == 59) { use(59); }
    if (a == 60) { use(60); }
    if (a == 61) { use(61); }
    if (a == 62) { use(62); }
    if (a == 63) { use(63); }
    if (a == 64) { use(64); }
    if (a == 65) { use(65); }
    if (a == 66) { use(66); }
    if (a == 67) { use(67); }
    if (a == 68) { use(68); }
    if (a == 69) { use(69); }
    if (a == 70) { use(70); }
  }
};
TEST_CASE("x", "[unit]") {
  use(1);
  use(2);
  use(3);
  use(4);
  use(5);
  use(6);
  use(7);
  use(8);
  use(9);
  use(10);
  use(11);
  use(12);
  use(13);
  use(14);
  use(15);
  use(16);
  use(17);
  use(18);
  use(19);
  use(20);
  use(21);
  use(22);
  use(23);
  use(24);
  use(25);
  use(26);
  use(27);
  use(28);
  use(29);
  use(30);
  use(31);
  use(32);
  use(33);
  use(34);
  use(35);
  use(36);
  use(37);
  use(38);
  use(39);
  use(40);
  use(41);
  use(42);
  use(43);
  use(44);
  use(45);
  use(46);
  use(47);
  use(48);
  use(49);
  use(50);
  use(51);
  use(52);
  use(53);
  use(54);
  use(55);
  use(56);
  use(57);
  use(58);
  use(59);
  use(60);
  use(61);
  use(62);
  use(63);
  use(64);
  use(65);
  use(66);
  use(67);
  use(68);
  use(69);
}
